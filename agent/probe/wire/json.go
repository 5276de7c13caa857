package wire

import (
	"bytes"
	"errors"
	"io"
	"strconv"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// errMalformed stands for every fault of a payload: the JSON library's own messages quote what they met.
var errMalformed = errors.New("malformed JSON")

// jsonOptions accept what servers send in practice: duplicate names and broken characters are no reason to lose a
// count. Neither is repaired, since no text is kept.
var jsonOptions = []jsontext.Options{jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)}

func (p *Parser) reset(payload []byte) {
	p.source = *bytes.NewBuffer(payload)
	p.json.Reset(&p.source, jsonOptions...)
}

// release lets go of the payload, so that a parser at rest holds no content.
func (p *Parser) release() { p.reset(nil) }

// end checks that nothing follows the value that was read.
func (p *Parser) end() error {
	if _, err := p.json.ReadToken(); !errors.Is(err, io.EOF) {
		return errMalformed
	}
	return nil
}

// is reports whether the next value is of kind k.
func (p *Parser) is(k jsontext.Kind) bool { return p.json.PeekKind() == k }

func (p *Parser) skip() error { return p.json.SkipValue() }

// object calls field for each name of the next value, which must take the name's value. A value that is no object is
// skipped.
func (p *Parser) object(field func(name []byte) error) error {
	if !p.is('{') {
		return p.skip()
	}
	if _, err := p.json.ReadToken(); err != nil {
		return err
	}
	for !p.is('}') {
		raw, err := p.json.ReadValue()
		if err != nil {
			return err
		}
		if err := field(p.unquote(raw)); err != nil {
			return err
		}
	}
	_, err := p.json.ReadToken()
	return err
}

// array calls element for each element of the next value, which must take it. A value that is no array is skipped.
func (p *Parser) array(element func() error) error {
	if !p.is('[') {
		return p.skip()
	}
	if _, err := p.json.ReadToken(); err != nil {
		return err
	}
	for !p.is(']') {
		if p.is(0) {
			return errMalformed
		}
		if err := element(); err != nil {
			return err
		}
	}
	_, err := p.json.ReadToken()
	return err
}

// unquote returns the text of a name. It is valid until the next name is read.
func (p *Parser) unquote(raw []byte) []byte {
	if len(raw) < 2 {
		return nil
	}
	if bytes.IndexByte(raw, '\\') < 0 {
		// The decoder reuses its memory only by reading on, and the name is looked at before that.
		return raw[1 : len(raw)-1]
	}
	p.name, _ = jsontext.AppendUnquote(p.name[:0], raw)
	return p.name
}

// length sets n to the number of elements of the next value, and leaves n alone if it is no array.
func (p *Parser) length(n *int32) error {
	if !p.is('[') {
		return p.skip()
	}
	*n = 0
	return p.array(func() error {
		*n++
		return p.skip()
	})
}

// count sets n to the next value if that is a number that a count can be.
func (p *Parser) count(n *int) error {
	f, ok, err := p.number()
	if ok && f >= 0 && f < 1<<40 {
		*n = int(f)
	}
	return err
}

// milliseconds sets d to the next value if that is a number of milliseconds that can be.
func (p *Parser) milliseconds(d *time.Duration) error {
	f, ok, err := p.number()
	// Below 1<<50 ns, which is thirteen days, nothing is lost in the conversion.
	if ok && f >= 0 && f < 1<<50/1e6 {
		*d = time.Duration(f * 1e6)
	}
	return err
}

func (p *Parser) number() (float64, bool, error) {
	if !p.is('0') {
		return 0, false, p.skip()
	}
	raw, err := p.json.ReadValue()
	if err != nil {
		return 0, false, err
	}
	if len(raw) < 10 && bytes.IndexFunc(raw, notDigit) < 0 {
		n := 0
		for _, c := range raw {
			n = n*10 + int(c-'0')
		}
		return float64(n), true, nil
	}
	// A number out of range is one that is not told.
	f, outOfRange := strconv.ParseFloat(string(raw), 64)
	return f, outOfRange == nil, nil
}

func notDigit(r rune) bool { return r < '0' || r > '9' }

// truth sets b to the next value if that is a boolean.
func (p *Parser) truth(b *bool) error {
	switch p.json.PeekKind() {
	case 't':
		*b = true
	case 'f':
		*b = false
	default:
	}
	return p.skip()
}

// filled sets b if the next value is a string with anything in it.
func (p *Parser) filled(b *bool) error {
	if !p.is('"') {
		return p.skip()
	}
	raw, err := p.json.ReadValue()
	*b = *b || len(raw) > len(`""`)
	return err
}
