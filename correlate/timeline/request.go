package timeline

import "time"

// CountSource says where a token count comes from, best first. It orders by trust: a lower value is better.
type CountSource uint8

// The sources of a token count.
const (
	CountNone      CountSource = iota // no count
	CountIDs                          // length of a list of token ids
	CountUsage                        // growth of a cumulative usage field
	CountLogprobs                     // length of a list of log probabilities
	CountFinal                        // the total the engine states at the end
	CountPerEvent                     // the dialect promises one token an event
	CountEstimated                    // something weaker than the engine's word
)

var countNames = []string{"none", "token_ids", "usage", "logprobs", "final_usage", "per_event", "estimated"}

// String returns the source's name as recordings spell it.
func (c CountSource) String() string {
	if int(c) < len(countNames) {
		return countNames[c]
	}
	return "none"
}

// TokenKind says what a stream's event carried.
type TokenKind uint8

// The kinds of event in a token stream. Only Content, Reasoning, Tool and Empty can bear tokens.
const (
	KindOther     TokenKind = iota // understood, and none of the below
	KindRole                       // names the speaker; never starts a clock
	KindContent                    // text of the answer
	KindReasoning                  // text of the reasoning
	KindTool                       // arguments or name of a tool call
	KindEmpty                      // no text, but tokens by count (an incomplete character, a special token)
	KindUsage                      // counts only
	KindProgress                   // of the prompt, before the first token
	KindError                      // an error object inside the stream
	KindPing                       // comment or keep-alive
	KindDone                       // the terminal marker
)

var kindNames = []string{"other", "role", "content", "reasoning", "tool", "empty", "usage", "progress", "error", "ping", "done"}

// String returns the kind's name as recordings spell it.
func (k TokenKind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return "other"
}

// Bears reports whether events of this kind can bear output tokens.
func (k TokenKind) Bears() bool { return k >= KindContent && k <= KindEmpty }

// StampSource says which clock reading a token's instant comes from.
type StampSource uint8

// The sources of a stamp.
const (
	StampUser   StampSource = iota // taken when the read returned
	StampKernel                    // the kernel's receive time, from the read's own control data
	StampClient                    // reported by a client that took it itself
	StampModel                     // computed by a simulation
)

var stampNames = []string{"user", "kernel", "client", "model"}

// String returns the source's name as recordings spell it.
func (s StampSource) String() string {
	if int(s) < len(stampNames) {
		return stampNames[s]
	}
	return "user"
}

// TokenEvent is one event of one stream that bore tokens or text. It holds no content and no size of content.
type TokenEvent struct {
	Ref       uint64      // the request, as its observer numbers it
	At        Instant     // when the event's last byte came
	After     Instant     // the event came in (After, At]; equal to At when the stamp is its own
	Tokens    int32       // output tokens in this event; meaningless when Source is CountNone
	Choice    int32       // index of the choice, for requests that ask for several
	Source    CountSource // of Tokens
	Kind      TokenKind
	Stamp     StampSource
	Coalesced bool // shared its read with a later event, so that At is that event's stamp
}

// Status says how a request ended.
type Status uint8

// The ways a request can end.
const (
	StatusOK         Status = iota // the server's terminal marker or finish reason was seen, or a whole non-streaming reply
	StatusHTTPError                // a response with an error status
	StatusInBand                   // an error object inside a 200 response
	StatusTruncated                // the stream ended without its terminal event
	StatusCancelled                // the client went away
	StatusUpstream                 // no response: refused, reset, or garbage
	StatusTimeout                  // no response in time
	StatusUnfinished               // the observer stopped first
)

var statusNames = []string{"ok", "http_error", "error_inband", "truncated", "cancelled", "upstream_error", "timeout", "unfinished"}

// String returns the status's name as recordings spell it.
func (s Status) String() string {
	if int(s) < len(statusNames) {
		return statusNames[s]
	}
	return "unfinished"
}

// Failed reports whether the request failed by the server's or the path's doing. A cancelled request did not fail,
// and neither did one that was still running when its observer stopped.
func (s Status) Failed() bool {
	return s != StatusOK && s != StatusCancelled && s != StatusUnfinished
}

// Flags are doubts about a request's record.
type Flags uint16

// The doubts.
const (
	FlagFirstAssumed    Flags = 1 << iota // the tokens of the first event are assumed to be one
	FlagCountMismatch                     // counts by event do not add up to the engine's total
	FlagNoCount                           // no token count at all
	FlagHiddenTokens                      // tokens were counted that were not streamed, and how many is unknown
	FlagCoalesced                         // more than 5 % of the token events shared a read
	FlagBacklog                           // tokens had piled up behind a late first event
	FlagNoTerminal                        // ended at end of file instead of with a terminal marker
	FlagUnalignedClock                    // stamps of a clock that could not be tied to the host's
	FlagEventsDropped                     // the observer ran out of room for token events
	FlagUnparsed                          // events whose payload the dialect does not know
	FlagCompressed                        // stamps are of a compressed stream
	FlagMultipleChoices                   // more than one choice; TPOT is over all of them
)

var flagNames = []string{
	"first_assumed", "count_mismatch", "no_count", "hidden_tokens", "coalesced", "backlog", "no_terminal", "unaligned_clock",
	"events_dropped", "unparsed", "compressed", "multiple_choices",
}

// Names returns the names of the flags that are set.
func (f Flags) Names() []string {
	var names []string
	for i, n := range flagNames {
		if f&(1<<i) != 0 {
			names = append(names, n)
		}
	}
	return names
}

// EngineTimings are what the engine says of one request in its own reply, in its own terms.
type EngineTimings struct {
	PromptTokens  int           // evaluated for this request, cached ones left out
	PromptTime    time.Duration // spent on them
	OutputTokens  int           // generated
	OutputTime    time.Duration // spent on them, by the engine's own definition
	TimeToFirst   time.Duration // zero if not told
	QueueTime     time.Duration // zero if not told
	PerOutputMean time.Duration // as the engine printed it, by its own divisor: tokens, or tokens less one; zero if not told
}

// Request is one observed request. An observer fills it as it goes: what has not happened is zero. Token events are
// kept apart and refer to it by Ref.
type Request struct {
	Ref      uint64 // unique within one recording; assigned by the agent
	ID       string // x-request-id
	TraceID  string // hex, as sent upstream
	SpanID   string // hex, as sent upstream: the span that is exported for this request
	ParentID string // hex; empty if the client sent no traceparent
	Sampled  bool   // the trace flag as sent upstream

	Target    string // the target this request went to, if known
	Upstream  string // scheme, host and port
	Dialect   string // of the wire
	Operation string // "chat", "text_completion", ...
	Model     string
	Streaming bool
	Client    string // what observed it: "proxy", "bench", ...

	Sent, Head, First, Last, Done Instant // request written, response head, first and last token-bearing event, end
	ClockBound                    time.Duration

	Status     Status
	HTTPStatus int
	Finish     string // the server's finish reason

	PromptTokens    int // with PromptKnown
	PromptKnown     bool
	CachedTokens    int // of the prompt, served from cache; zero if not told
	OutputTokens    int // with Counted != CountNone
	Counted         CountSource
	ReasoningTokens int // of the output, as told
	FirstTokens     int // k_first: tokens in the first token-bearing event
	MaxTokens       int // asked for; zero if not
	Choices         int // asked for; one if not told
	Events          int // token-bearing events seen
	KernelStamped   int // of them
	Coalesced       int // of them
	Flags           Flags
	Engine          EngineTimings
}

// Over returns the request's whole span, from sent to done. A request that is still open ends at its last sign of
// life.
func (r *Request) Over() Span {
	return Span{r.Sent, max(r.Sent, r.Head, r.First, r.Last, r.Done)}
}

// Decode returns the span from the first to the last token-bearing event.
func (r *Request) Decode() Span { return Span{r.First, r.Last} }

// PrefillOnly reports whether the request asked for one token at most: a class of its own, neither failed nor short.
func (r *Request) PrefillOnly() bool { return r.MaxTokens == 1 }
