package script

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/ebpf/btf"
)

// formatStrconv is how strconv writes a number, with an exponent where we do.
func formatStrconv(v float64, size int) string {
	text := strconv.FormatFloat(v, 'e', -1, size)
	if strings.HasSuffix(text, "Inf") {
		return strings.ToLower(strings.TrimPrefix(text, "+"))
	}
	if e, err := strconv.Atoi(text[strings.IndexByte(text, 'e')+1:]); err == nil && e >= -4 && e < plainDigits {
		return strconv.FormatFloat(v, 'f', -1, size)
	}
	return text
}

// TestFloatsByStrconv: numbers of 4 and 8 bytes are written with strconv's digits: at all powers of two with
// their neighbours, and at random.
func TestFloatsByStrconv(t *testing.T) {
	single, _ := formatOf(&btf.Float{Name: "float", Size: 4})
	double, _ := formatOf(&btf.Float{Name: "double", Size: 8})
	same := func(bits any, v float64, got, want string) {
		a, _ := new(big.Rat).SetString(got)
		b, _ := new(big.Rat).SetString(want)
		if v != v || a != nil && b != nil && len(got) == len(want) && new(big.Rat).Add(a, b).Cmp(new(big.Rat).SetFloat64(2*v)) == 0 {
			return // no number, or one in the middle between both
		}
		t.Errorf("%#x is %s, want %s", bits, got, want)
	}
	check4 := func(bits uint32) {
		v := float64(math.Float32frombits(bits))
		got, _ := single.text(binary.LittleEndian.AppendUint32(nil, bits))
		if want := formatStrconv(v, 32); got != want {
			same(bits, v, got, want)
		}
	}
	check8 := func(bits uint64) {
		v := math.Float64frombits(bits)
		got, _ := double.text(binary.LittleEndian.AppendUint64(nil, bits))
		if want := formatStrconv(v, 64); got != want {
			same(bits, v, got, want)
		}
	}
	for e := range uint32(256) {
		for d := range uint32(5) {
			check4(e<<23 + d - 2)
		}
	}
	for e := uint64(0); e < 2048; e += 3 {
		for d := range uint64(5) {
			check8(e<<52 + d - 2)
		}
	}
	for bit := range 64 { // subnormal ones
		check8(1 << bit)
		check8(1<<bit - 1)
		check4(uint32(1<<bit - 1))
	}
	for exp := 1.0; exp < 1e25; exp *= 10 {
		check8(math.Float64bits(exp))
		check8(math.Float64bits(-1 / exp))
		check8(math.Float64bits(exp) - 1)
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 5000 {
		check8(r.Uint64())
		check4(r.Uint32())
	}
}

// x87 are the 16 bytes that a long double has.
func x87(sign bool, exponent uint16, mantissa uint64) []byte {
	if sign {
		exponent |= 1 << 15
	}
	return append(binary.LittleEndian.AppendUint16(binary.LittleEndian.AppendUint64(nil, mantissa), exponent), 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff)
}

// TestLongDouble wants exact text and JSON of numbers that glibc reads back likewise, and at random ones
// that the text reads back, and none of fewer digits does.
func TestLongDouble(t *testing.T) {
	long := &btf.Float{Name: "long double", Size: 16}
	for _, c := range []struct {
		data       []byte
		text, json string
	}{
		{x87(false, 0x3fff, 1<<63), "1", "1"},
		{x87(true, 0x3ffe, 1<<63), "-0.5", "-0.5"},
		{x87(false, 0, 0), "0", "0"},
		{x87(true, 0, 0), "-0", "-0"},
		{x87(false, 0x3ffb, 0xcccccccccccccccd), "0.1", `"0.1"`},                                     // 0.1L
		{x87(false, 0x3ffb, 0xccccccccccccd000), "0.10000000000000000555", "0.10000000000000000555"}, // (long double)0.1
		{x87(false, 0x4000, 0xc90fdaa22168c235), "3.1415926535897932385", `"3.1415926535897932385"`},
		{x87(false, 0x7ffe, math.MaxUint64), "1.189731495357231765e+4932", `"1.189731495357231765e+4932"`}, // LDBL_MAX
		{x87(false, 1, 1<<63), "3.3621031431120935063e-4932", `"3.3621031431120935063e-4932"`},             // LDBL_MIN
		{x87(false, 0, 1), "4e-4951", `"4e-4951"`},                                                         // LDBL_TRUE_MIN
		{x87(false, 0, 1<<63), "3.3621031431120935063e-4932", `"3.3621031431120935063e-4932"`},             // a pseudo-denormal number is its normal one
		{x87(false, 0x7fff, 1<<63), "inf", `"inf"`},
		{x87(true, 0x7fff, 1<<63), "-inf", `"-inf"`},
		{x87(true, 0x7fff, 3<<62), "-nan(0xc000000000000000)", `"-nan"`},
		{x87(false, 0x7fff, 0), "<invalid float value>", `"<invalid float value>"`},
		{x87(false, 0x3fff, 1), "<invalid float value>", `"<invalid float value>"`},
		{x87(false, 0x403e, math.MaxUint64), "18446744073709551615", `"18446744073709551615"`},
		{x87(false, 0x403f, 1<<63), "18446744073709551616", "18446744073709551616"},
	} {
		if text, json := CValue(long, c.data, false), CValue(long, c.data, true); text != c.text || json != c.json {
			t.Errorf("%x is %s and %s, want %s and %s", c.data[:10], text, json, c.text, c.json)
		}
	}
	f, _ := formatOf(long)
	r := rand.New(rand.NewPCG(3, 4))
	for range 60 {
		m, e := r.Uint64()|1<<63, r.IntN(0x7ffe)+1
		text, _ := f.text(x87(false, uint16(e), m))
		exact := new(big.Float).SetMantExp(new(big.Float).SetUint64(m), e-0x3fff-63)
		back := func(text string) bool {
			v, ok := new(big.Rat).SetString(text)
			return ok && new(big.Float).SetPrec(64).SetRat(v).Cmp(exact) == 0
		}
		digits := strings.Trim(strings.ReplaceAll(strings.Split(text, "e")[0], ".", ""), "0")
		if shorter := exact.Text('e', len(digits)-2); !back(text) || len(digits) > 1 && back(shorter) {
			t.Errorf("%#x at %#x is %s", m, e, text)
		}
	}
}

// TestOtherFloats: the formats that compilers have names for, complex numbers, integers of 16 bytes, and bit fields of these.
func TestOtherFloats(t *testing.T) {
	i128 := &btf.Int{Name: "__int128", Size: 16, Encoding: btf.Signed}
	u128 := &btf.Int{Name: "__int128 unsigned", Size: 16}
	double := &btf.Float{Name: "double", Size: 8}
	half := math.Float64bits(0.5)
	words := func(v ...uint64) (b []byte) {
		for _, x := range v {
			b = binary.LittleEndian.AppendUint64(b, x)
		}
		return b
	}
	s := &btf.Struct{Name: "all", Size: 64, Members: []btf.Member{
		{Name: "f", Type: &btf.Typedef{Name: "metres", Type: &btf.Float{Name: "float", Size: 4}}},
		{Name: "wide", Type: i128, Offset: 128},
		{Name: "field", Type: i128, Offset: 256 + 3, BitfieldSize: 70},
		{Name: "two", Type: &btf.Array{Type: double, Nelems: 2}, Offset: 384},
	}}
	for _, c := range []struct {
		t          btf.Type
		data       []byte
		text, json string
	}{
		{i128, words(math.MaxUint64, math.MaxUint64), "-1", "-1"},
		{i128, words(0, 1<<63), "-170141183460469231731687303715884105728", "-170141183460469231731687303715884105728"}, // a float64 has it
		{i128, words(1, 1), "18446744073709551617", `"18446744073709551617"`},
		{u128, words(math.MaxUint64, math.MaxUint64), "340282366920938463463374607431768211455", `"340282366920938463463374607431768211455"`},
		{&btf.Const{Type: &btf.Typedef{Name: "u128", Type: u128}}, words(7, 0), "7", "7"},
		{&btf.Float{Name: "_Float16", Size: 2}, []byte{0xff, 0x7b}, "65500", "65500"},
		{&btf.Float{Name: "_Float16", Size: 2}, []byte{1, 0}, "6e-08", "6e-08"},
		{&btf.Float{Name: "__bf16", Size: 2}, []byte{0x80, 0x3f}, "1", "1"},
		{&btf.Float{Name: "_Float128", Size: 16}, words(0x999999999999999a, 0x3ffb999999999999), "0.1", `"0.1"`},
		{&btf.Float{Name: "_Decimal64", Size: 8}, words(1), "[1,0,0,0,0,0,0,0]", "[1,0,0,0,0,0,0,0]"},
		{&btf.Array{Type: double, Nelems: 3}, words(half, math.Float64bits(math.Inf(-1)), math.Float64bits(math.NaN())), "[0.5,-inf,nan(0x8000000000001)]", `[0.5,"-inf","nan"]`},
		{s, words(uint64(math.Float32bits(0.1)), 0, 5, 0, 0xf<<3|7, 1<<8, half, math.Float64bits(1e300)),
			"{\n  .f = 0.1\n  .wide = 5\n  .field = -590295810358705651697\n  .two = [0.5,1e+300]\n}",
			`{"f": 0.1, "wide": 5, "field": "-590295810358705651697", "two": [0.5,1e+300]}`},
	} {
		if text, json := CValue(c.t, c.data, false), CValue(c.t, c.data, true); text != c.text || json != c.json {
			t.Errorf("%v of %x is\n%s\n%s, want\n%s\n%s", c.t, c.data, text, json, c.text, c.json)
		}
	}
	if got := fmt.Sprint(fromC(i128), " ", fromC(double)); got != "__int128 double" {
		t.Errorf("types are %s", got)
	}
}
