package timeline

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

// Measure is a number, or the reason why there is none. The zero Measure is the number zero; make an absent one with
// [Absent].
type Measure struct {
	Value float64
	Why   string // not empty: there is no value, and this is why
}

// Known returns the measure of value v.
func Known(v float64) Measure { return Measure{Value: v} }

// Absent returns a measure that has no value, because of why.
func Absent(why string) Measure { return Measure{Why: why} }

// OK reports whether the measure has a value.
func (m Measure) OK() bool { return m.Why == "" }

// absent is the JSON form of a measure without a value.
type absent struct {
	Absent string `json:"absent"`
}

// MarshalJSON writes the number, or {"absent": "why"}.
func (m Measure) MarshalJSON() ([]byte, error) {
	if !m.OK() {
		return json.Marshal(absent{m.Why})
	}
	return json.Marshal(m.Value)
}

// errNoReason is the fault of an object that is neither a number nor says why not.
var errNoReason = errors.New("read absent measure: no reason given")

// UnmarshalJSON reads what MarshalJSON wrote. Null is absent too, never zero.
func (m *Measure) UnmarshalJSON(b []byte) error {
	b = bytes.TrimSpace(b)
	if bytes.Equal(b, []byte("null")) {
		*m = Absent("null")
		return nil
	}
	if len(b) > 0 && b[0] == '{' {
		var a absent
		if err := json.Unmarshal(b, &a); err != nil {
			return fmt.Errorf("read absent measure: %w", err)
		}
		if a.Absent == "" {
			return errNoReason
		}
		*m = Absent(a.Absent)
		return nil
	}
	*m = Measure{}
	return json.Unmarshal(b, &m.Value)
}
