package relay

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
	"time"

	"github.com/tpotscope/tpotscope/agent/probe"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// exchange is one observed request on its way.
type exchange struct {
	relay   *Relay
	ctx     context.Context // the request's, with a cause
	cancel  context.CancelCauseFunc
	w       http.ResponseWriter
	flush   *http.ResponseController
	tracker *probe.Tracker
	record  timeline.Request // as it was opened
	conn    *conn            // the connection that the response comes on
	stamp   probe.Stamp      // of its newest read; guarded by the connection
	sent    atomic.Int64     // when the request was written out
	asked   bool             // for the final usage, on behalf of the client
	filter  *probe.UsageFilter
	cause   fault
}

// observe relays one request and follows it to its end.
func (r *Relay) observe(w http.ResponseWriter, req *http.Request) {
	r.stats.inFlight.Add(1)
	defer r.stats.inFlight.Add(-1)
	ctx, cancel := context.WithCancelCause(req.Context())
	defer cancel(nil)
	x := &exchange{relay: r, ctx: ctx, cancel: cancel, w: w, flush: http.NewResponseController(w)}
	x.record = timeline.Request{Ref: r.ref(), Target: r.cfg.Target, Upstream: r.origin, Client: "proxy"}
	out := x.outgoing(ctx, req)
	identify(out.Header, &x.record)
	x.tracker = probe.NewTracker(r.sink, x.record, r.cfg.MaxEventBytes)
	defer x.release()

	held, err := x.body(req, out)
	opened := x.open(req.URL.Path, held)
	if err != nil {
		<-opened
		x.cause = faultClient
		x.finish(probe.EndClient)
		http.Error(w, "the request's body cannot be read", http.StatusBadRequest)
		return
	}
	resp, err := r.transport.RoundTrip(out)
	<-opened
	if at := x.sent.Load(); at != 0 {
		x.tracker.Sent(timeline.Instant(at))
	}
	if err == nil && (resp.StatusCode < 200 || resp.StatusCode > 999) {
		_ = resp.Body.Close() // of a response that is none
		err = errStatus
	}
	if err != nil {
		x.cause = classify(ctx, err)
		x.finish(x.cause.end(probe.EndUpstream))
		refuse(w, x.cause)
		return
	}
	defer func() { _ = resp.Body.Close() }()
	x.respond(resp)
}

// release ends what must not outlive the exchange, whichever way it ended: the record, and the stamps of a connection
// that is kept for others and would keep the exchange in memory for as long.
func (x *exchange) release() {
	x.tracker.Close(x.relay.clock.Now(), probe.EndStopped)
	if x.conn != nil {
		x.conn.forget(&x.stamp)
	}
}

// smallBody is the size up to which a request is read before it is sent, which takes some ten microseconds. Longer ones
// are read while the engine has them already.
const smallBody = 8 << 10

// open reads the request and announces it. The tracker is not to be touched before the channel is closed.
func (x *exchange) open(path string, body []byte) <-chan struct{} {
	opened := make(chan struct{})
	now := x.relay.clock.Now()
	read := func() {
		x.tracker.Asked(path, body)
		x.tracker.Open(now)
		close(opened)
	}
	if len(body) <= smallBody {
		read()
	} else {
		go read()
	}
	return opened
}

// outgoing returns the request as the upstream is to see it, without its body.
func (x *exchange) outgoing(ctx context.Context, req *http.Request) *http.Request {
	u := *x.relay.upstream
	u = *u.JoinPath(req.URL.EscapedPath())
	u.RawQuery = req.URL.RawQuery
	out := &http.Request{Method: req.Method, URL: &u, Host: u.Host, Header: req.Header.Clone()}
	dropHopByHop(out.Header)
	out.Header.Del("Expect") // answered here
	if _, ok := out.Header["User-Agent"]; !ok {
		out.Header["User-Agent"] = nil // or the transport names itself
	}
	if _, ok := out.Header["Idempotency-Key"]; !ok {
		// Present but empty: the transport may send the request again when an idle connection turns out to be dead before
		// anything came back, and the header itself is not sent (net/http, Transport).
		out.Header["Idempotency-Key"] = nil
	}
	trace := &httptrace.ClientTrace{
		GotConn: func(info httptrace.GotConnInfo) {
			if x.conn = stamped(info.Conn); x.conn != nil {
				x.conn.deliver(&x.stamp, x.relay.clock.Now())
			}
		},
		WroteRequest: func(httptrace.WroteRequestInfo) {
			x.sent.Store(int64(x.relay.clock.Now()))
		},
	}
	return out.WithContext(httptrace.WithClientTrace(ctx, trace))
}

// body gives the outgoing request its body and returns what of it is held.
func (x *exchange) body(req, out *http.Request) ([]byte, error) {
	limit := x.relay.cfg.MaxBodyBytes
	var held bytes.Buffer
	if req.ContentLength > 0 {
		// What a client says it will send is room only as far as it costs nothing to believe.
		held.Grow(int(min(req.ContentLength, limit, believedBody) + bytes.MinRead))
	}
	if _, err := io.Copy(&held, io.LimitReader(req.Body, limit+1)); err != nil {
		return held.Bytes(), err
	}
	b := held.Bytes()
	if int64(len(b)) > limit {
		x.relay.stats.streamed.Add(1)
		out.Body = io.NopCloser(io.MultiReader(bytes.NewReader(b), req.Body))
		out.ContentLength = req.ContentLength
		return b, nil
	}
	if x.relay.cfg.InjectUsage {
		b, x.asked = probe.AskUsage(b)
	}
	if x.asked && out.Header.Get("Accept-Encoding") != "" {
		out.Header.Set("Accept-Encoding", "identity") // nothing can be taken out of a compressed stream
	}
	out.ContentLength = int64(len(b))
	out.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b)), nil }
	out.Body, _ = out.GetBody()
	return b, nil
}

// believedBody is how much room is made for a request's body before any of it has come.
const believedBody = 256 << 10

// respond relays a response.
func (x *exchange) respond(resp *http.Response) {
	h := x.w.Header()
	dropHopByHop(resp.Header)
	maps.Copy(h, resp.Header)
	for name := range resp.Trailer {
		h.Add("Trailer", name)
	}
	if _, ok := h["Date"]; !ok {
		h["Date"] = nil // or the server adds its own
	}
	if _, ok := h["Content-Type"]; !ok {
		h["Content-Type"] = nil // or the server guesses
	}
	x.tracker.Head(x.headAt(), resp.StatusCode, resp.Header.Get("Content-Type"), resp.Header.Get("Content-Encoding"))
	if x.asked && resp.StatusCode == http.StatusOK && plainStream(resp.Header) {
		x.filter = probe.NewUsageFilter(x.relay.cfg.MaxEventBytes)
		h.Del("Content-Length")
	}
	x.w.WriteHeader(resp.StatusCode)
	if resp.ContentLength < 0 {
		_ = x.flush.Flush() // a client that has gone is met at the first write
	}
	end := x.copy(resp.Body)
	if x.filter != nil && end != probe.EndClient {
		_ = x.send(x.filter.Rest()) // at the end there is no one left to tell
	}
	maps.Copy(h, resp.Trailer)
	if resp.StatusCode >= http.StatusBadRequest {
		x.cause = "error_status"
	}
	x.finish(end)
	if end == probe.EndCut || end == probe.EndTimeout || end == probe.EndStopped {
		x.abort()
	}
}

// plainStream reports whether a response is a stream of events that is not compressed.
func plainStream(h http.Header) bool {
	encoding := strings.ToLower(h.Get("Content-Encoding"))
	return strings.HasPrefix(strings.ToLower(h.Get("Content-Type")), "text/event-stream") && (encoding == "" || encoding == "identity")
}

// headAt is when the response's head came. It came by the connection's newest read: nothing reads on before the body.
func (x *exchange) headAt() timeline.Instant {
	if st, ok := x.newest(); ok {
		return st.At
	}
	return x.relay.clock.Now()
}

func (x *exchange) newest() (probe.Stamp, bool) {
	if x.conn == nil {
		return probe.Stamp{}, false
	}
	st := x.conn.look(&x.stamp)
	return st, !st.At.IsZero()
}

// copy relays a body: one read, one write, and then the tracker's turn.
func (x *exchange) copy(body io.Reader) probe.End {
	r := x.relay
	buffer, _ := r.buffers.Get().(*[readBuffer]byte)
	defer r.buffers.Put(buffer)
	stamper := probe.NewStamper(body, r.clock.Now, x.newest)
	wait, waited := x.watch()
	defer waited()
	for {
		wait()
		n, stamp, err := stamper.Read(buffer[:])
		waited()
		if n > 0 {
			read := r.clock.Now()
			gone := x.write(buffer[:n])
			r.stats.hold.add(r.clock.Now().Sub(read))
			x.tracker.Read(buffer[:n], stamp)
			if gone != nil {
				x.cause = faultClient
				if errors.Is(context.Cause(x.ctx), errStopped) {
					x.cause = faultStopped
				}
				return x.cause.end(probe.EndClient)
			}
		}
		switch {
		case err == nil:
		case errors.Is(err, io.EOF):
			return probe.EndEOF
		default:
			x.cause = classify(x.ctx, err)
			return x.cause.end(probe.EndCut)
		}
	}
}

// watch returns what to call before and after each wait for the upstream, so that silence beyond the limit ends the
// exchange. The time that the client takes does not count.
func (x *exchange) watch() (wait, waited func()) {
	limit := x.relay.cfg.StreamTimeout
	if limit <= 0 {
		return func() {}, func() {}
	}
	silence := time.AfterFunc(limit, func() { x.cancel(errSilent) })
	return func() { silence.Reset(limit) }, func() { silence.Stop() }
}

// write hands bytes of the body to the client, but for the event that it did not ask for.
func (x *exchange) write(b []byte) error {
	if x.filter != nil {
		b = x.filter.Feed(b)
	}
	return x.send(b)
}

func (x *exchange) send(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	if _, err := x.w.Write(b); err != nil {
		return err
	}
	x.relay.stats.bytes.Add(uint64(len(b)))
	return x.flush.Flush()
}

// end is how a request ends by a fault; without is for one of the upstream's.
func (f fault) end(without probe.End) probe.End {
	switch f {
	case faultClient:
		return probe.EndClient
	case faultStopped:
		return probe.EndStopped
	case faultTimeout:
		return probe.EndTimeout
	default:
		return without
	}
}

// abort breaks the connection to the client, so that a body that broke off upstream does not look whole downstream.
func (x *exchange) abort() {
	if c, _, err := x.flush.Hijack(); err == nil {
		_ = c.Close()
	}
}

// finish closes the record, and writes the one line that a failed request gets.
func (x *exchange) finish(end probe.End) {
	r := x.relay
	record := x.tracker.Close(r.clock.Now(), end)
	r.stats.ended(record)
	if !record.Status.Failed() {
		return
	}
	cause := string(x.cause)
	if cause == "" {
		cause = record.Status.String()
	}
	held, ok := r.failures.admit()
	if !ok {
		return
	}
	r.log.LogAttrs(x.ctx, slog.LevelWarn, "request failed",
		slog.String("status", record.Status.String()),
		slog.String("cause", cause),
		slog.Int("http_status", record.HTTPStatus),
		slog.String("request_id", record.ID),
		slog.String("trace_id", record.TraceID),
		slog.String("operation", record.Operation),
		slog.String("upstream", r.origin),
		slog.Int("events", record.Events),
		slog.Duration("after", record.Done.Sub(record.Sent)),
		slog.Uint64("more_not_logged", held),
	)
}
