package ipc_test

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/array"
	arrowipc "github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/google/go-cmp/cmp"

	"github.com/tpotscope/tpotscope/exporters/record/ipc"
)

func packer(tb testing.TB) *ipc.Packer {
	tb.Helper()
	p, err := ipc.NewPacker()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(p.Close)
	return p
}

// fillNoise makes rows that packing makes no shorter.
func fillNoise(rng *rand.Rand) func(*array.RecordBuilder, int) {
	return func(b *array.RecordBuilder, _ int) {
		b.Field(0).(*array.Int64Builder).Append(int64(rng.Uint64()))
		b.Field(1).(*array.Float64Builder).Append(rng.NormFloat64())
		b.Field(2).(*array.Uint8Builder).Append(uint8(rng.Uint32()))
		b.Field(3).(*array.BooleanBuilder).Append(rng.IntN(2) == 0)
		b.Field(4).(*array.StringBuilder).Append(string(rune('a' + rng.IntN(26))))
	}
}

func TestPackedBatchesHoldWhatWasPacked(t *testing.T) {
	p := packer(t)
	for name, batches := range map[string][]int{
		"none": {}, "one row": {1}, "an empty batch": {3, 0, 2}, "many": {700, 1, ipc.MaxRows},
	} {
		for kind, fill := range map[string]func(*array.RecordBuilder, int){"flat": fillFlat, "noise": fillNoise(rand.New(rand.NewPCG(1, 1)))} {
			plain := written(t, flatSchema(), fill, batches)
			packed, err := p.Pack(plain)
			if err != nil {
				t.Fatalf("%s, %s: %v", name, kind, err)
			}
			want, _ := spell(t, plain)
			got, err := spell(t, packed)
			if diff := cmp.Diff(want, got); diff != "" || !errors.Is(err, io.EOF) {
				t.Errorf("%s, %s: %v (-plain +packed):\n%s", name, kind, err, diff)
			}
			if n := len(batches); kind == "flat" && n > 0 && batches[n-1] == ipc.MaxRows && len(packed)*4 > len(plain) {
				t.Errorf("%s: %d bytes of %d are left", name, len(packed), len(plain))
			}
			again, err := p.Pack(bytes.Clone(packed))
			if err != nil || !bytes.Equal(again, packed) {
				t.Errorf("%s, %s: what is packed is not left as it is: %v", name, kind, err)
			}
		}
	}
}

// Arrow's own reader, and so every other program, reads what is packed here.
func TestArrowReadsPackedBatches(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 2))
	for kind, fill := range map[string]func(*array.RecordBuilder, int){"flat": fillFlat, "noise": fillNoise(rng)} {
		plain := written(t, flatSchema(), fill, []int{100, 0, 5000})
		packed, err := packer(t).Pack(plain)
		if err != nil {
			t.Fatal(err)
		}
		var texts [2]strings.Builder
		for i, b := range [][]byte{plain, packed} {
			r, err := arrowipc.NewReader(bytes.NewReader(b))
			if err != nil {
				t.Fatal(err)
			}
			for r.Next() {
				text, err := r.RecordBatch().MarshalJSON()
				if err != nil {
					t.Fatal(err)
				}
				texts[i].Write(text)
			}
			if err := r.Err(); err != nil {
				t.Fatalf("%s: %v", kind, err)
			}
			r.Release()
		}
		if diff := cmp.Diff(texts[0].String(), texts[1].String()); diff != "" || texts[0].Len() < 1000 {
			t.Errorf("%s (-plain +packed):\n%s", kind, diff)
		}
	}
}

// A flipped bit in a packed buffer is found by its checksum, or changes nothing.
func TestDamageInAPackedBatchIsFound(t *testing.T) {
	plain := written(t, flatSchema(), fillFlat, []int{300})
	packed, err := packer(t).Pack(plain)
	if err != nil {
		t.Fatal(err)
	}
	want, _ := spell(t, packed)
	found := 0
	for i := len(packed) / 2; i < len(packed)-8; i++ {
		b := bytes.Clone(packed)
		b[i] ^= 1
		got, err := spell(t, b)
		switch {
		case !errors.Is(err, io.EOF):
			found++
		case !cmp.Equal(want, got):
			t.Errorf("bit of byte %d of %d: other rows and no fault", i, len(packed))
		}
	}
	if found < 50 {
		t.Errorf("%d faults were found", found)
	}
}

func TestPackRefusesWhatIsNoStream(t *testing.T) {
	p := packer(t)
	plain := written(t, flatSchema(), fillFlat, []int{10})
	for n := 1; n < len(plain)-8; n += 7 {
		packed, err := p.Pack(plain[:n])
		if err != nil {
			continue
		}
		if _, err := spell(t, packed); !errors.Is(err, io.EOF) { // between two messages it may end
			t.Errorf("the first %d of %d bytes were packed: %v", n, len(plain), err)
		}
	}
	if _, err := p.Pack([]byte("no stream at all")); !errors.Is(err, ipc.ErrDamaged) {
		t.Errorf("%v, want %v", err, ipc.ErrDamaged)
	}
}

func BenchmarkPack(b *testing.B) {
	p := packer(b)
	plain := written(b, flatSchema(), fillFlat, []int{8192})
	b.SetBytes(int64(len(plain)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := p.Pack(plain); err != nil {
			b.Fatal(err)
		}
	}
}

func FuzzPack(f *testing.F) {
	f.Add(written(f, flatSchema(), fillFlat, []int{3, 1}))
	f.Add(written(f, flatSchema(), fillFlat, []int{5}, arrowipc.WithZstd()))
	f.Add([]byte{255, 255, 255, 255, 0, 0, 0, 0})
	p := packer(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		packed, err := p.Pack(b)
		if err != nil {
			return
		}
		want, errPlain := spell(t, b)
		got, err := spell(t, packed)
		if diff := cmp.Diff(want, got); diff != "" && errors.Is(errPlain, io.EOF) {
			t.Errorf("%v and %v (-plain +packed):\n%s", errPlain, err, diff)
		}
	})
}
