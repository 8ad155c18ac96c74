package script

import (
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf/btf"
)

// floatFormat is the layout of a floating-point number, from its lowest bit on:
// fraction, the integer bit if it is stored, exponent, sign.
type floatFormat struct {
	fraction, exponent uint
	whole              bool // the integer bit is stored (x87)
}

// formatOf returns the format of a type; ok is false if it is not one of IEEE 754's
// binary formats, as for decimal numbers. Formats of the same size are distinguished
// by name.
func formatOf(t *btf.Float) (f floatFormat, ok bool) {
	switch {
	case strings.Contains(t.Name, "Decimal"):
		return f, false
	case t.Size == 2 && strings.Contains(t.Name, "bf16"):
		return floatFormat{7, 8, false}, true
	case t.Size == 2:
		return floatFormat{10, 5, false}, true
	case t.Size == 4:
		return floatFormat{23, 8, false}, true
	case t.Size == 8:
		return floatFormat{52, 11, false}, true
	case t.Size == 16 && strings.Contains(t.Name, "128"):
		return floatFormat{112, 15, false}, true
	case t.Size == 10 || t.Size == 12 || t.Size == 16:
		return floatFormat{63, 15, true}, true
	}
	return f, false
}

// bigOf is the unsigned number with these bytes.
func bigOf(data []byte) *big.Int {
	b := slices.Clone(data)
	slices.Reverse(b)
	return new(big.Int).SetBytes(b)
}

// lowBits are the lowest n bits of v.
func lowBits(v *big.Int, n uint) *big.Int {
	mask := new(big.Int).Lsh(big.NewInt(1), n)
	return mask.And(v, mask.Sub(mask, big.NewInt(1)))
}

// text is the shortest decimal number that reads back as the number in data. exact
// says that a float64 can hold it, or that it has fewer bits and JSON's readers round
// it likewise. Values that are not numbers are written as in gdb.
func (f floatFormat) text(data []byte) (text string, exact bool) {
	bits := bigOf(data)
	width := f.fraction
	if f.whole {
		width++
	}
	m := lowBits(bits, width)
	e := int(lowBits(new(big.Int).Rsh(bits, width), f.exponent).Int64())
	sign := ""
	if bits.Bit(int(width+f.exponent)) == 1 {
		sign = "-"
	}
	top := 1<<f.exponent - 1
	one := new(big.Int).Lsh(big.NewInt(1), f.fraction)
	switch {
	case f.whole && e != 0 && m.Bit(int(f.fraction)) == 0:
		return "<invalid float value>", false // no processor since the 80387 accepts it (SDM, volume 1, 8.2.2)
	case e == top && lowBits(m, f.fraction).Sign() == 0:
		return sign + "inf", false
	case e == top:
		return sign + "nan(0x" + m.Text(16) + ")", false
	case e == 0:
		e = 1
	case !f.whole:
		m.Or(m, one)
	}
	if m.Sign() == 0 {
		return sign + "0", true
	}
	power := e - top/2 - int(f.fraction)
	digits, point := shortestDigits(m, power, e > 1 && m.Cmp(one) == 0)
	high := m.BitLen() + power
	exact = f.fraction <= 52 || m.BitLen()-int(m.TrailingZeroBits()) <= 53 && high > -1022 && high <= 1024
	return sign + placePoint(digits, point), exact
}

// shortestDigits returns the digits of the shortest decimal number, 0.DIGITS times 10
// to the power of point, that is nearer to m times 2 to the power than to its
// neighbors; of several it returns the nearest. If narrow is set the lower neighbor
// is at half the distance of the upper one. It is the algorithm of Steele and White,
// as Burger and Dybvig have it ("Printing Floating-Point Numbers Quickly and
// Accurately", figure 1).
func shortestDigits(m *big.Int, power int, narrow bool) (digits []byte, point int) {
	even := m.Bit(0) == 0 // then the midpoint between two numbers reads back as this one
	// The number is r/s; the midpoints to its neighbors are up/s and down/s away.
	r, s := new(big.Int).Lsh(m, 1), big.NewInt(2)
	up, down := big.NewInt(1), big.NewInt(1)
	if power >= 0 {
		for _, x := range []*big.Int{r, up, down} {
			x.Lsh(x, uint(power))
		}
	} else {
		s.Lsh(s, uint(-power))
	}
	if narrow {
		for _, x := range []*big.Int{r, s, up} {
			x.Lsh(x, 1)
		}
	}
	ten := big.NewInt(10)
	point = int(math.Ceil(float64(m.BitLen()+power-1)*math.Log10(2) - 1e-10)) // or one more
	scale := new(big.Int).Exp(ten, big.NewInt(int64(max(point, -point))), nil)
	if point >= 0 {
		s.Mul(s, scale)
	} else {
		for _, x := range []*big.Int{r, up, down} {
			x.Mul(x, scale)
		}
	}
	above := func() bool {
		c := new(big.Int).Add(r, up).Cmp(s)
		return c > 0 || c == 0 && even
	}
	if above() {
		point++
		s.Mul(s, ten)
	}
	for digit := new(big.Int); ; {
		for _, x := range []*big.Int{r, up, down} {
			x.Mul(x, ten)
		}
		digit.QuoRem(r, s, r)
		d := byte('0' + digit.Int64())
		c := r.Cmp(down)
		low, high := c < 0 || c == 0 && even, above()
		switch {
		case !low && !high:
			digits = append(digits, d)
			continue
		case low && high:
			c := r.Lsh(r, 1).Cmp(s)
			high = c > 0 || c == 0 && d&1 == 1
		}
		if high {
			d++
		}
		return append(digits, d), point
	}
}

// Numbers are written without an exponent from 0.0001 to below 10 to the power of
// this.
const plainDigits = 21

// placePoint writes 0.DIGITS times 10 to the power of point.
func placePoint(digits []byte, point int) string {
	n := len(digits)
	switch {
	case point < -3 || point > plainDigits:
		text := string(digits[:1])
		if n > 1 {
			text += "." + string(digits[1:])
		}
		e := strconv.Itoa(max(point-1, 1-point))
		if len(e) < 2 {
			e = "0" + e
		}
		return text + map[bool]string{true: "e-", false: "e+"}[point < 1] + e
	case point <= 0:
		return "0." + strings.Repeat("0", -point) + string(digits)
	case point >= n:
		return string(digits) + strings.Repeat("0", point-n)
	}
	return string(digits[:point]) + "." + string(digits[point:])
}

// jsonFloat is a number. It is a string if text is not a number, or a float64 would
// lose bits.
func jsonFloat(text string, exact bool) string {
	if exact {
		return text
	}
	text, _, _ = strings.Cut(text, "(")
	return strconv.Quote(text)
}

// jsonBig does the same for an integer.
func jsonBig(v *big.Int) string {
	if _, a := new(big.Float).SetInt(v).Float64(); a == big.Exact {
		return v.String()
	}
	return strconv.Quote(v.String())
}
