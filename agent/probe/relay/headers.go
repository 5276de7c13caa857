package relay

import (
	"crypto/rand"
	"encoding/hex"
	"net/http"
	"net/textproto"
	"strings"

	"golang.org/x/net/http/httpguts"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// hopByHop are the headers that concern one connection (RFC 9110, section 7.6.1, and their older kin).
var hopByHop = []string{
	"Connection", "Proxy-Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Te", "Trailer",
	"Transfer-Encoding", "Upgrade",
}

// dropHopByHop removes the headers that concern one connection, those that Connection names among them.
func dropHopByHop(h http.Header) {
	for _, list := range h["Connection"] {
		for name := range strings.SplitSeq(list, ",") {
			if name = textproto.TrimString(name); name != "" {
				h.Del(name)
			}
		}
	}
	for _, name := range hopByHop {
		h.Del(name)
	}
}

// upgrades reports whether a request asks for another protocol, which is passed on unobserved.
func upgrades(h http.Header) bool {
	return httpguts.HeaderValuesContainsToken(h["Connection"], "Upgrade")
}

const (
	requestIDHeader = "X-Request-Id"
	parentHeader    = "Traceparent"
	stateHeader     = "Tracestate"
)

// identify keeps the client's request id and trace or makes them, puts what the upstream is to see into h, and notes
// it in the record: the record's span is a child of the client's, and the parent of the engine's.
func identify(h http.Header, r *timeline.Request) {
	r.ID = h.Get(requestIDHeader)
	switch {
	case r.ID == "":
		// Engines repeat the id in each chunk, so that it is short.
		r.ID = randomHex(16)
		h.Set(requestIDHeader, r.ID)
	case !plainID(r.ID):
		r.ID = "" // passes, but is not repeated in records
	}
	trace, parent, flags, ok := parseTraceparent(h.Get(parentHeader))
	if !ok {
		trace, parent, flags = randomHex(16), "", "01"
		h.Del(stateHeader)
	}
	r.TraceID, r.ParentID, r.SpanID = trace, parent, randomHex(8)
	bits, err := hex.DecodeString(flags)
	r.Sampled = err == nil && bits[0]&1 == 1
	h.Set(parentHeader, "00-"+r.TraceID+"-"+r.SpanID+"-"+flags)
}

// plainID reports whether an id is of the kind that clients make, and no text.
func plainID(id string) bool {
	if len(id) > 128 {
		return false
	}
	for _, c := range []byte(id) {
		switch {
		case c >= '0' && c <= '9', c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z':
		case strings.IndexByte("-_.:/=+", c) >= 0:
		default:
			return false
		}
	}
	return true
}

// parseTraceparent reads a W3C traceparent header (Trace Context, section 3.2). Fields that later versions may add are
// ignored.
func parseTraceparent(s string) (trace, parent, flags string, ok bool) {
	const whole = len("00-0123456789abcdef0123456789abcdef-0123456789abcdef-01")
	if len(s) < whole || s[2] != '-' || s[35] != '-' || s[52] != '-' {
		return "", "", "", false
	}
	version := s[:2]
	trace, parent, flags = s[3:35], s[36:52], s[53:55]
	switch {
	case !lowerHex(version), version == "ff", version == "00" && len(s) != whole, len(s) > whole && s[whole] != '-':
		return "", "", "", false
	case !lowerHex(trace), !lowerHex(parent), !lowerHex(flags), strings.Trim(trace, "0") == "", strings.Trim(parent, "0") == "":
		return "", "", "", false
	}
	return trace, parent, flags, true
}

func lowerHex(s string) bool {
	for _, c := range []byte(s) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

func randomHex(bytes int) string {
	b := make([]byte, bytes)
	_, _ = rand.Read(b) // never fails (crypto/rand, Read)
	return hex.EncodeToString(b)
}
