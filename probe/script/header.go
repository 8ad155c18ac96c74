package script

import (
	"math/big"

	"golang.org/x/sys/unix"
)

// headers are the constants of C's headers that scripts use most, with their values
// on x86-64: errors, signals, and others. They are macros, so type information does
// not have them.
var headers = map[string]uint64{
	"AF_UNSPEC": unix.AF_UNSPEC, "AF_UNIX": unix.AF_UNIX, "AF_LOCAL": unix.AF_LOCAL, "AF_INET": unix.AF_INET, "AF_INET6": unix.AF_INET6, "AF_NETLINK": unix.AF_NETLINK, "AF_PACKET": unix.AF_PACKET, "AF_VSOCK": unix.AF_VSOCK,
	"SOCK_STREAM": unix.SOCK_STREAM, "SOCK_DGRAM": unix.SOCK_DGRAM, "SOCK_RAW": unix.SOCK_RAW,
	"IPPROTO_TCP": unix.IPPROTO_TCP, "IPPROTO_UDP": unix.IPPROTO_UDP, "IPPROTO_ICMP": unix.IPPROTO_ICMP,
	"O_RDONLY": unix.O_RDONLY, "O_WRONLY": unix.O_WRONLY, "O_RDWR": unix.O_RDWR, "O_ACCMODE": unix.O_ACCMODE, "O_CREAT": unix.O_CREAT, "O_EXCL": unix.O_EXCL, "O_TRUNC": unix.O_TRUNC, "O_APPEND": unix.O_APPEND,
	"O_NONBLOCK": unix.O_NONBLOCK, "O_DSYNC": unix.O_DSYNC, "O_SYNC": unix.O_SYNC, "O_DIRECT": unix.O_DIRECT, "O_DIRECTORY": unix.O_DIRECTORY, "O_NOFOLLOW": unix.O_NOFOLLOW, "O_CLOEXEC": unix.O_CLOEXEC,
	"O_PATH": unix.O_PATH, "O_TMPFILE": unix.O_TMPFILE,
	"S_IFMT": unix.S_IFMT, "S_IFREG": unix.S_IFREG, "S_IFDIR": unix.S_IFDIR, "S_IFLNK": unix.S_IFLNK, "S_IFBLK": unix.S_IFBLK, "S_IFCHR": unix.S_IFCHR, "S_IFIFO": unix.S_IFIFO, "S_IFSOCK": unix.S_IFSOCK,
	"PROT_NONE": unix.PROT_NONE, "PROT_READ": unix.PROT_READ, "PROT_WRITE": unix.PROT_WRITE, "PROT_EXEC": unix.PROT_EXEC,
	"MAP_SHARED": unix.MAP_SHARED, "MAP_PRIVATE": unix.MAP_PRIVATE, "MAP_FIXED": unix.MAP_FIXED, "MAP_ANONYMOUS": unix.MAP_ANONYMOUS,
	"CLONE_VM": unix.CLONE_VM, "CLONE_FS": unix.CLONE_FS, "CLONE_FILES": unix.CLONE_FILES, "CLONE_SIGHAND": unix.CLONE_SIGHAND, "CLONE_THREAD": unix.CLONE_THREAD, "CLONE_VFORK": unix.CLONE_VFORK,
	"CLONE_NEWNS": unix.CLONE_NEWNS, "CLONE_NEWPID": unix.CLONE_NEWPID, "CLONE_NEWNET": unix.CLONE_NEWNET, "CLONE_NEWUSER": unix.CLONE_NEWUSER,
}

func init() {
	for n := range uint64(256) {
		if name := unix.ErrnoName(unix.Errno(n)); name != "" {
			headers[name] = n
		}
		if name := unix.SignalName(unix.Signal(n)); name != "" {
			headers[name] = n
		}
	}
}

// maxInt and minInt are the bounds of signed numbers, and maxUint is the bound of
// unsigned ones.
var (
	minInt  = new(big.Int).Lsh(big.NewInt(-1), 63)
	maxInt  = new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), 63), big.NewInt(1))
	maxUint = new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), 64), big.NewInt(1))
)

// exact returns the unbounded value of a sum, difference or product of literals.
func (s *script) exact(e *expr) (*big.Int, bool) { return s.calculate(e, false) }

// calculate is exact; if all is set it also supports the other operations on numbers
// that are not negative.
func (s *script) calculate(e *expr, all bool) (*big.Int, bool) {
	switch e.kind {
	case exInt:
		if e.below {
			return big.NewInt(int64(e.num)), true
		}
		return new(big.Int).SetUint64(e.num), true
	case exParam:
		n, ok := s.constant(e)
		return big.NewInt(n), ok
	case exUnary:
		if x, ok := s.calculate(e.args[0], all); ok && e.name == "-" {
			return x.Neg(x), true
		}
	case exBinary:
		x, ok := s.calculate(e.args[0], all)
		if !ok {
			return nil, false
		}
		y, ok := s.calculate(e.args[1], all)
		if !ok {
			return nil, false
		}
		switch e.name {
		case "+":
			return x.Add(x, y), true
		case "-":
			return x.Sub(x, y), true
		case "*":
			return x.Mul(x, y), true
		}
		if !all || x.Sign() < 0 || y.Sign() < 0 {
			return nil, false
		}
		switch e.name {
		case "/", "%":
			if y.Sign() == 0 {
				return nil, false
			}
			if e.name == "%" {
				return x.Rem(x, y), true
			}
			return x.Quo(x, y), true
		case "&":
			return x.And(x, y), true
		case "|":
			return x.Or(x, y), true
		case "^":
			return x.Xor(x, y), true
		case "<<", ">>":
			if y.Cmp(big.NewInt(63)) > 0 {
				return nil, false
			}
			if e.name == ">>" {
				return x.Rsh(x, uint(y.Int64())), true
			}
			return x, x.Lsh(x, uint(y.Int64())).Cmp(maxUint) <= 0 // as in C, excess bits are lost
		}
	}
	return nil, false
}

// checkOverflow rejects an operation on constants whose result does not fit into 64
// bits, as bpftrace does, which calculates it at compile time. It reports whether
// only an unsigned number can hold the result.
func (c *checker) checkOverflow(e *expr) (large bool, err error) {
	n, ok := c.exact(e)
	if !ok {
		return false, c.checkShift(e)
	}
	most := maxUint
	for _, a := range e.args {
		x, _ := c.exact(a)
		if x.Sign() < 0 && len(e.args) > 1 { // the operation is signed
			most = maxInt
		}
	}
	tooLarge := n.Cmp(most) > 0
	for _, a := range e.args {
		x, _ := c.exact(a)
		tooLarge = tooLarge || most == maxInt && x.Cmp(maxInt) > 0
	}
	switch {
	case tooLarge:
		return false, c.errorAt(e.Span, "overflow: the result of these constants does not fit into 64 bits")
	case n.Cmp(minInt) < 0:
		return false, c.errorAt(e.Span, "underflow: the result of these constants does not fit into 64 bits")
	}
	return n.Cmp(maxInt) > 0, nil
}

// checkShift rejects a shift of a constant by an invalid number of bits.
func (c *checker) checkShift(e *expr) error {
	if e.name != "<<" && e.name != ">>" {
		return nil
	}
	_, of := c.exact(e.args[0])
	if by, ok := c.exact(e.args[1]); of && ok && (by.Sign() < 0 || by.Cmp(big.NewInt(63)) > 0) {
		return c.errorAt(e.Span, "overflow: a constant is shifted by %d bits, and has 64", by)
	}
	return nil
}

// checkFits rejects a constant that a variable of a declared type cannot hold.
func (c *checker) checkFits(v *variable, value *expr) error {
	if v == nil || !v.fixed || v.typ.Kind != Int || v.typ.C != nil || value == nil {
		return nil
	}
	n, ok := c.calculate(value, true)
	if !ok {
		return nil
	}
	bits := uint(8 * v.typ.Size)
	least, most := big.NewInt(0), new(big.Int).Lsh(big.NewInt(1), bits)
	if v.typ.Signed {
		most.Rsh(most, 1)
		least.Neg(most)
	}
	if n.Cmp(least) >= 0 && n.Cmp(most) < 0 {
		return nil
	}
	return c.errorAt(value.Span, "Type mismatch for %s: %s does not fit a variable of type '%s'", v.name, n, v.typ).hint("(%s)%s has the bits that fit", v.typ, c.text[value.From:value.To])
}

// foldText replaces an operation on two string literals by its result, and reports
// whether it did.
func (e *expr) foldText() bool {
	a, b := e.args[0], e.args[1]
	if a.kind != exString || b.kind != exString {
		return false
	}
	is := false
	switch e.name {
	case "+":
		*e = expr{kind: exString, Span: e.Span, text: a.text + b.text}
		return true
	case "<":
		is = a.text < b.text
	case "<=":
		is = a.text <= b.text
	case ">":
		is = a.text > b.text
	case ">=":
		is = a.text >= b.text
	default:
		return false
	}
	*e = *truthAt(e.Span, is)
	return true
}

// truthAt is the literal true or false.
func truthAt(at Span, is bool) *expr {
	return &expr{kind: exCast, Span: at, cast: &typeName{c: cNumbers["bool"]}, args: []*expr{{kind: exInt, Span: at, num: uint64(signIndex(is))}}}
}
