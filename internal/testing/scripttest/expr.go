package scripttest

import (
	"fmt"
	"maps"
	"math/big"
	"strconv"
	"strings"
)

// kind is the type of a value in a random script.
type kind uint8

const (
	signed   kind = iota // int64
	unsigned             // uint64
	truth                // bool
	text                 // string
)

// value is a number, or a text.
type value struct {
	n int64
	s string
}

// expr is an expression: its text, and its value in a hit.
type expr struct {
	kind kind
	src  string
	eval func(h *hit) value
	lit  bool // a number that is written out

	known *big.Int // its value, for literals combined with + - * only; scripts in which it does not fit into 64 bits are rejected
}

// number is an expression that is always n.
func number(n uint64) expr {
	k := signed
	if int64(n) < 0 {
		k = unsigned
	}
	src := strconv.FormatUint(n, 10)
	if n%3 == 0 {
		src = fmt.Sprintf("%#x", n)
	}
	return expr{kind: k, src: src, lit: k == signed, known: new(big.Int).SetUint64(n), eval: func(*hit) value { return value{n: int64(n)} }}
}

// operateExactly is an operation on two literals. It returns nil for other
// operands. ok is false if scripts with the operation are rejected.
func operateExactly(op string, a, b expr) (n *big.Int, ok bool) {
	if a.known == nil || b.known == nil {
		return nil, true
	}
	n = new(big.Int)
	switch op {
	case "+":
		n.Add(a.known, b.known)
	case "-":
		n.Sub(a.known, b.known)
	case "*":
		n.Mul(a.known, b.known)
	default:
		return nil, true
	}
	if a.known.Sign() < 0 || b.known.Sign() < 0 {
		return n, n.IsInt64() && a.known.IsInt64() && b.known.IsInt64()
	}
	return n, n.IsInt64() || n.IsUint64()
}

// interesting are boundary values.
var interesting = []uint64{0, 1, 2, 3, 5, 7, 8, 10, 63, 64, 100, 127, 128, 255, 256, 1000, 4096, 1<<31 - 1, 1 << 31, 1<<32 - 1, 1 << 32, 1<<63 - 1, 1 << 63, 1<<64 - 1}

// numericExpr makes an expression that is a number, or a truth value.
func (g *gen) numericExpr(depth int) expr {
	if depth <= 0 {
		return g.leaf()
	}
	switch g.n(12) {
	case 0, 1:
		return g.leaf()
	case 2, 3, 4, 5:
		return g.arithmetic(depth)
	case 6:
		return g.comparison(depth)
	case 7:
		return g.unary(depth)
	case 8:
		return g.cast(depth)
	case 9:
		c, a, b := g.numericExpr(depth-1), g.numericExpr(depth-1), g.numericExpr(depth-1)
		a, b = g.plainNumber(a), g.plainNumber(b)
		k := signed
		if !signedTogether(a, b) {
			k = unsigned
		}
		if g.portable {
			a, b = g.cast64(a, k), g.cast64(b, k)
		}
		return expr{kind: k, src: fmt.Sprintf("(%s ? %s : %s)", c.src, a.src, b.src), eval: func(h *hit) value {
			if c.eval(h).n != 0 {
				return a.eval(h)
			}
			return b.eval(h)
		}}
	case 10:
		return g.logic(depth)
	}
	a, b := g.textExpr(), g.textExpr()
	not := g.n(2) == 0
	op := "=="
	if not {
		op = "!="
	}
	return expr{kind: truth, src: fmt.Sprintf("(%s %s %s)", a.src, op, b.src), eval: func(h *hit) value { return truthValue((a.eval(h).s == b.eval(h).s) != not) }}
}

// maxPortable bounds literals that bpftrace calculates with: it rejects
// overflows, over all literals of an expression.
const maxPortable = 128

// cast64 is a 64-bit number, signed or unsigned: bpftrace accepts no others
// after ?:.
func (g *gen) cast64(e expr, k kind) expr {
	return expr{kind: k, src: fmt.Sprintf("(%s)%s", map[kind]string{signed: "int64", unsigned: "uint64"}[k], e.src), eval: e.eval}
}

// plainNumber converts a truth value to a number.
func (g *gen) plainNumber(e expr) expr {
	if e.kind != truth {
		return e
	}
	return expr{kind: signed, src: "(int64)" + e.src, eval: e.eval}
}

func truthValue(b bool) value {
	if b {
		return value{n: 1}
	}
	return value{}
}

// signedTogether reports whether two numbers are signed together, by C's rule for 64 bits.
func signedTogether(a, b expr) bool {
	return (a.kind != unsigned || b.lit && a.kind != unsigned) && (b.kind != unsigned || a.lit && b.kind != unsigned)
}

func (g *gen) leaf() expr {
	if e, ok := g.writer(signed); ok {
		return e
	}
	switch g.n(5) {
	case 0:
		if n := interesting[g.n(len(interesting))]; !g.portable || n <= maxPortable {
			return number(n)
		}
	case 1:
		return number(uint64(g.n(50)))
	case 2:
		if e, ok := g.element(); ok {
			return e
		}
	case 3:
		if g.args > 0 {
			i := g.n(g.args)
			return expr{kind: unsigned, src: fmt.Sprintf("arg%d", i), eval: func(h *hit) value { return value{n: int64(h.args[i])} }}
		}
	}
	if v := g.variable(); v != nil {
		return v.read()
	}
	return number(uint64(g.n(10)))
}

// arithmetic makes an operation. If the script also runs in bpftrace, it avoids
// operations on possibly negative numbers for which bpftrace has other rules.
func (g *gen) arithmetic(depth int) expr {
	a := g.numericExpr(depth - 1)
	known, nested := maps.Clone(g.known), g.nested
	b := g.numericExpr(depth - 1)
	if g.portable { // where two truth values are one again
		a, b = g.plainNumber(a), g.plainNumber(b)
	}
	ops := []string{"+", "-", "*", "&", "|", "^", "/", "%", "<<", ">>"}
	op := ops[g.n(len(ops))]
	if g.portable && len(op) == 2 || g.portable && (op == "/" || op == "%") {
		op = ops[g.n(6)]
	}
	if len(op) == 2 {
		b, g.known, g.nested = number(uint64(g.n(64))), known, nested // the code that was made for it is not in the script
	}
	if (op == "/" || op == "%") && literal(a.src) && literal(b.src) && b.eval(nil).n == 0 {
		b = number(7) // bpftrace rejects it for two constants
	}
	exact, ok := operateExactly(op, a, b)
	if !ok {
		b = number(0)
		exact, _ = operateExactly(op, a, b)
	}
	sign := signedTogether(a, b)
	if len(op) == 2 {
		sign = a.kind != unsigned
	}
	k := signed
	if !sign && op != "-" || exact != nil && !exact.IsInt64() {
		k = unsigned
	}
	return expr{kind: k, known: exact, src: fmt.Sprintf("(%s %s %s)", a.src, op, b.src), eval: func(h *hit) value {
		return value{n: operate(op, a.eval(h).n, b.eval(h).n, sign)}
	}}
}

// literal reports whether an expression consists of numbers and operators only.
func literal(src string) bool { return strings.Trim(src, "0123456789abcdefx+-*/%<>&|^ ()") == "" }

// operate is one operation on 64 bits.
func operate(op string, x, y int64, sign bool) int64 {
	switch op {
	case "+":
		return x + y
	case "-":
		return x - y
	case "*":
		return x * y
	case "&":
		return x & y
	case "|":
		return x | y
	case "^":
		return x ^ y
	case "<<":
		return x << uint(y)
	case ">>":
		if sign {
			return x >> uint(y)
		}
		return int64(uint64(x) >> uint(y))
	case "/":
		switch {
		case y == 0:
			return 1
		case sign:
			return x / y
		}
		return int64(uint64(x) / uint64(y))
	}
	switch {
	case y == 0:
		return 1
	case sign:
		return x % y
	}
	return int64(uint64(x) % uint64(y))
}

func (g *gen) comparison(depth int) expr {
	a, b := g.numericExpr(depth-1), g.numericExpr(depth-1)
	ops := []string{"==", "!=", "<", "<=", ">", ">="}
	op := ops[g.n(len(ops))]
	sign := signedTogether(a, b)
	if g.portable && (!sign || !a.lit && !b.lit && (a.kind == truth) != (b.kind == truth)) {
		op = ops[g.n(2)]
	}
	return expr{kind: truth, src: fmt.Sprintf("(%s %s %s)", a.src, op, b.src), eval: func(h *hit) value {
		x, y := a.eval(h).n, b.eval(h).n
		less, equal := uint64(x) < uint64(y), x == y
		if sign {
			less = x < y
		}
		return truthValue(map[string]bool{"==": equal, "!=": !equal, "<": less, "<=": less || equal, ">": !less && !equal, ">=": !less}[op])
	}}
}

func (g *gen) logic(depth int) expr {
	a, b := g.numericExpr(depth-1), g.numericExpr(depth-1)
	if g.n(2) == 0 {
		return expr{kind: truth, src: fmt.Sprintf("(%s && %s)", a.src, b.src), eval: func(h *hit) value { return truthValue(a.eval(h).n != 0 && b.eval(h).n != 0) }}
	}
	return expr{kind: truth, src: fmt.Sprintf("(%s || %s)", a.src, b.src), eval: func(h *hit) value { return truthValue(a.eval(h).n != 0 || b.eval(h).n != 0) }}
}

func (g *gen) unary(depth int) expr {
	a := g.numericExpr(depth - 1)
	switch {
	case g.n(2) == 0:
		return expr{kind: truth, src: "(!" + a.src + ")", eval: func(h *hit) value { return truthValue(a.eval(h).n == 0) }}
	case g.n(2) == 0 || g.portable:
		if g.portable {
			a = g.plainNumber(a)
		}
		exact, ok := operateExactly("-", number(0), a)
		if !ok {
			a = number(7)
			exact = big.NewInt(-7)
		}
		return expr{kind: signed, known: exact, src: "(-" + a.src + ")", eval: func(h *hit) value { return value{n: -a.eval(h).n} }}
	}
	k := signed
	if a.kind == unsigned {
		k = unsigned
	}
	return expr{kind: k, src: "(~" + a.src + ")", eval: func(h *hit) value { return value{n: ^a.eval(h).n} }}
}

// cast makes a number of fewer bits, which has 64 bits again in calculations.
func (g *gen) cast(depth int) expr {
	a := g.plainNumber(g.numericExpr(depth - 1))
	bits := []int{8, 16, 32, 64}[g.n(4)]
	shift := uint(64 - bits)
	if g.n(2) == 0 {
		return expr{kind: signed, src: fmt.Sprintf("((int%d)%s)", bits, a.src), eval: func(h *hit) value { return value{n: a.eval(h).n << shift >> shift} }}
	}
	// The result for two unsigned numbers is unsigned, so convert it back to a
	// signed one.
	k, src := signed, fmt.Sprintf("((int64)(uint%d)%s)", bits, a.src)
	if bits == 64 {
		k, src = unsigned, fmt.Sprintf("((uint64)%s)", a.src)
	}
	return expr{kind: k, src: src, eval: func(h *hit) value { return value{n: int64(uint64(a.eval(h).n) << shift >> shift)} }}
}

// words are the strings of random scripts.
var words = []string{"", "a", "b", "ab", "seven77", "eight888", "nine99999", "a longer one, of 25 bytes"}

// textExpr makes a string.
func (g *gen) textExpr() expr {
	if e, ok := g.writer(text); ok {
		return e
	}
	if v := g.stringVariable(); v != nil && g.n(2) == 0 {
		return v.read()
	}
	s := words[g.n(len(words))]
	return expr{kind: text, src: fmt.Sprintf("%q", s), eval: func(*hit) value { return value{s: s} }}
}
