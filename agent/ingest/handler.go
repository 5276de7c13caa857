package ingest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	pb "github.com/tpotscope/tpotscope/agent/ingest/ingestpb"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// NewHandler returns the service, and the path to mount it at. For gRPC its server must speak unencrypted HTTP/2 or
// TLS.
func NewHandler(cfg Config) (string, http.Handler, error) {
	if cfg.Sink == nil || cfg.Now == nil || cfg.Anchor == nil {
		return "", nil, errors.New("make ingest handler: sink, clock and anchor are needed")
	}
	path, h := pb.NewIngestHandler(&handler{cfg: cfg, sessions: map[Source]*session{}},
		connect.WithReadMaxBytes(maxMessageBytes),
		connect.WithCodec(strictJSON{"json"}), connect.WithCodec(strictJSON{"json; charset=utf-8"}))
	return path, h, nil
}

// strictJSON reads JSON and refuses fields that the schema does not have, so that a misspelt field is an error and not
// a loss.
type strictJSON struct{ name string }

// Name returns the codec's content subtype.
func (c strictJSON) Name() string { return c.name }

// Marshal writes a message.
func (c strictJSON) Marshal(v any) ([]byte, error) {
	m, ok := v.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("write JSON: %T is no message", v)
	}
	return protojson.MarshalOptions{UseProtoNames: true, EmitUnpopulated: true}.Marshal(m)
}

// Unmarshal reads a message.
func (c strictJSON) Unmarshal(b []byte, v any) error {
	m, ok := v.(proto.Message)
	if !ok {
		return fmt.Errorf("read JSON: %T is no message", v)
	}
	if len(b) == 0 {
		return errors.New("read JSON: empty body")
	}
	return protojson.Unmarshal(b, m)
}

// session is what the handler knows of a source. Its lock keeps the reports of one source in order.
type session struct {
	mu      sync.Mutex
	sink    timeline.RequestSink
	aligner Aligner
	last    uint64 // sequence of the newest report taken
	ref     uint64 // newest number given to a request of Submit
	wide    map[uint64]time.Duration

	heard timeline.Instant // guarded by the handler's lock
}

// submitRefs is where the numbers of submitted requests begin, apart from those that reporters give.
const submitRefs = 1 << 63

type handler struct {
	cfg Config

	mu       sync.Mutex
	sessions map[Source]*session
}

var _ pb.IngestHandler = (*handler)(nil)

// Exchange answers with the host's clock.
func (h *handler) Exchange(_ context.Context, req *connect.Request[pb.ExchangeRequest]) (*connect.Response[pb.ExchangeResponse], error) {
	t2 := h.cfg.Now()
	if err := noUnknown(req.Msg.ProtoReflect(), ""); err != nil {
		return nil, invalid(err)
	}
	return connect.NewResponse(&pb.ExchangeResponse{
		T1Ns: req.Msg.GetT1Ns(), T2Ns: int64(t2), BootId: h.cfg.Anchor().BootID, T3Ns: int64(h.cfg.Now()),
	}), nil
}

// Report takes a batch. A batch that is sent again is taken once, as long as this handler lives: one whose answer was
// lost because the agent ended comes once to the agent before and once to the one after.
func (h *handler) Report(_ context.Context, req *connect.Request[pb.ReportRequest]) (*connect.Response[pb.ReportResponse], error) {
	t2 := h.cfg.Now()
	m := req.Msg
	if err := checkReport(m); err != nil {
		return nil, invalid(err)
	}
	rows := uint64(len(m.GetOpened()) + len(m.GetTokens().GetRef()) + len(m.GetClosed()))
	resp := &pb.ReportResponse{T1Ns: m.GetT1Ns(), T2Ns: int64(t2), BootId: h.cfg.Anchor().BootID}
	s, src, conv, err := h.begin(m.GetOrigin(), m.GetExchanges())
	if err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	if m.GetSequence() <= s.last {
		resp.Dropped = rows
		resp.T3Ns = int64(h.cfg.Now())
		return connect.NewResponse(resp), nil
	}
	left := leave{count: h.cfg.Refused.add}
	batch, err := readReport(m, src, conv, around(h.cfg.Now()), &left)
	if err != nil {
		return nil, invalid(err)
	}
	if left.rows > 0 && left.rows == rows {
		return nil, invalid(left.first)
	}
	s.last = m.GetSequence()
	batch.widen(s.wide)
	batch.deliver(s.sink)
	resp.Accepted, resp.Refused = rows-left.rows, left.rows
	resp.T3Ns = int64(h.cfg.Now())
	return connect.NewResponse(resp), nil
}

// Submit takes finished requests.
func (h *handler) Submit(_ context.Context, req *connect.Request[pb.SubmitRequest]) (*connect.Response[pb.SubmitResponse], error) {
	m := req.Msg
	if err := checkSubmit(m); err != nil {
		return nil, invalid(err)
	}
	s, src, conv, err := h.begin(m.GetOrigin(), m.GetExchanges())
	if err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	in, left := around(h.cfg.Now()), leave{count: h.cfg.Refused.add}
	batches := make([]batch, 0, len(m.GetRequests()))
	for i, t := range m.GetRequests() {
		b, err := readTiming(t, submitRefs+s.ref+uint64(i)+1, src, conv, in)
		if err != nil {
			err = fmt.Errorf("requests[%d].%w", i, err)
			if left.out(err) {
				continue
			}
			return nil, invalid(err)
		}
		batches = append(batches, b)
	}
	if len(batches) == 0 && left.first != nil {
		return nil, invalid(left.first)
	}
	s.ref += uint64(len(m.GetRequests()))
	for i := range batches {
		batches[i].deliver(s.sink)
	}
	resp := &pb.SubmitResponse{Accepted: uint64(len(batches)), BootId: h.cfg.Anchor().BootID, Refused: left.rows}
	if left.first != nil {
		resp.RefusedWhy = left.first.Error()
	}
	return connect.NewResponse(resp), nil
}

// begin returns the session of the origin's source, locked unless there is an error, and how its times are read.
func (h *handler) begin(o *pb.Origin, exchanges []*pb.Stamps) (*session, Source, converter, error) {
	s, src, err := h.session(o)
	if err != nil {
		return nil, src, nil, err
	}
	s.mu.Lock()
	conv, err := h.converter(s, src, exchanges)
	if err != nil {
		s.mu.Unlock()
		return nil, src, nil, err
	}
	return s, src, conv, nil
}

// session returns what is known of the origin's source.
func (h *handler) session(o *pb.Origin) (*session, Source, error) {
	src := Source{
		Name: o.GetSource(), Process: o.GetProcess(), BootID: o.GetBootId(), Wall: o.GetClock() == pb.Clock_CLOCK_UNIX,
	}
	src.Local = src.BootID != "" && src.BootID == h.cfg.Anchor().BootID
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.sessions[src]
	if s == nil {
		sink := h.cfg.Sink(src)
		if sink == nil {
			return nil, src, connect.NewError(connect.CodePermissionDenied, fmt.Errorf("origin.source: %q may not report here", src.Name))
		}
		h.forgetOldest()
		s = &session{sink: sink, wide: map[uint64]time.Duration{}}
		if !src.Local && h.cfg.Aligner != nil {
			s.aligner = h.cfg.Aligner(src)
		}
		h.sessions[src] = s
	}
	s.heard = h.cfg.Now()
	return s, src, nil
}

// forgetOldest makes room for a session.
func (h *handler) forgetOldest() {
	if len(h.sessions) < maxSessions {
		return
	}
	var oldest Source
	found := false
	for src, s := range h.sessions {
		if !found || s.heard < h.sessions[oldest].heard {
			oldest, found = src, true
		}
	}
	if sink, ok := h.sessions[oldest].sink.(Forgetter); ok {
		sink.Forget()
	}
	delete(h.sessions, oldest)
}

// converter returns how the source's times are read. The session's lock is held.
func (h *handler) converter(s *session, src Source, exchanges []*pb.Stamps) (converter, error) {
	switch {
	case src.Local && !src.Wall:
		return asIs, nil
	case src.Local:
		return byAnchor(h.cfg.Anchor()), nil
	case s.aligner == nil:
		return nil, connect.NewError(connect.CodeUnimplemented,
			errors.New("origin.boot_id: not of this host's boot, and this agent aligns no other clocks"))
	}
	for i, x := range exchanges {
		if timeline.Instant(x.GetT3Ns()) > h.cfg.Now() {
			return nil, invalid(fmt.Errorf("exchanges[%d].t3_ns: %w", i, errAhead)) // no answer of this host
		}
		s.aligner.Add(Exchange{
			timeline.Instant(x.GetT1Ns()), timeline.Instant(x.GetT2Ns()), timeline.Instant(x.GetT3Ns()), timeline.Instant(x.GetT4Ns()),
		})
	}
	if _, _, ok := s.aligner.Local(1); !ok {
		return nil, connect.NewError(connect.CodeFailedPrecondition,
			errors.New("exchanges: none yet, and origin.boot_id is not of this host's boot: call Exchange and hand its stamps over first"))
	}
	return byAligner(s.aligner), nil
}

func invalid(err error) error { return connect.NewError(connect.CodeInvalidArgument, err) }
