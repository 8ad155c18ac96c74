package script

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cilium/ebpf/btf"

	"github.com/guestprobe/guestprobe/guest/types"
)

// Kind is the kind of a type.
type Kind uint8

// The kinds. Those from Count on are only values of maps.
const (
	None      Kind = iota // not known yet, or no value
	Int                   // Size bytes, Signed or not
	Bool                  // printed as true and false
	String                // at most Size bytes
	Tuple                 // Elems
	Pointer               // to Elems[0]
	Void                  // only as the target of pointers
	Struct                // a structure or union C of Size bytes
	Array                 // Depth elements of Elems[0], Size bytes
	Buffer                // at most Size bytes
	KStack                // Depth addresses, in the map of stacks of that depth, printed by Format
	UStack                // likewise, of user code
	KSym                  // an address that is printed as a name
	Errno                 // a number that is printed as strerror does
	Signal                // a number that is printed as a signal's name
	Syscall               // a number that is printed as a system call's name
	Timestamp             // nanoseconds on the clock of nsecs, which are printed by Format
	Inet                  // an address of a family; the first word is its number, the next two are the bytes
	MAC                   // an address of 6 bytes

	Count
	Sum
	Avg
	Min
	Max
	Stats
	Hist    // Size is k
	LHist   // Low, High, Step
	TSeries // High intervals of Step nanoseconds, whose values are combined by Format
)

var kindNames = [...]string{
	None: "none", Int: "int", Bool: "bool", String: "string", Tuple: "tuple", Pointer: "pointer", Void: "void", Struct: "struct", Array: "array", Buffer: "buffer", KStack: "kstack", UStack: "ustack", KSym: "ksym",
	Errno: "strerror", Signal: "signal", Syscall: "syscall_name", Timestamp: "timestamp", Inet: "inet", MAC: "macaddr", Count: "count", Sum: "sum", Avg: "avg", Min: "min", Max: "max", Stats: "stats", Hist: "hist", LHist: "lhist", TSeries: "tseries",
}

// Type is the type of a value. In memory each value begins at a multiple of 8 bytes,
// and numbers have 8, sign- or zero-extended; but the contents of a Struct or an
// Array have C's layout.
type Type struct {
	Kind   Kind
	Size   int
	Signed bool
	Elems  []Type
	Depth  int
	Names  []string // of the elements of a Tuple that is a record
	C      btf.Type // of Struct, of an Int that is an enumeration, and of an Array that is one number: __int128, or floating point

	Least int // of an Int of which all values are literals: the size of the smallest signed type that has them

	Of *variable // whose address a Pointer is, if that is known: its target's type may still become larger

	Low, High, Step int64  // of LHist
	Format          string // of Timestamp, and the mode of stacks
}

var (
	typeInt  = Type{Kind: Int, Size: 8, Signed: true}
	typeUint = Type{Kind: Int, Size: 8}
	typeBool = Type{Kind: Bool, Size: 8}
)

func typeUintOf(size int) Type { return Type{Kind: Int, Size: size} }
func typeString(n int) Type    { return Type{Kind: String, Size: n} }
func pointerTo(t Type) Type {
	t.Least = 0
	return Type{Kind: Pointer, Size: 8, Elems: []Type{t}}
}
func (t Type) is(ks ...Kind) bool { return slices.Contains(ks, t.Kind) }

// String formats the type for messages.
func (t Type) String() string {
	switch t.Kind {
	case Int:
		if t.C != nil {
			return types.Text(t.C)
		}
		u := "u"
		if t.Signed {
			u = ""
		}
		return fmt.Sprintf("%sint%d", u, 8*t.Size)
	case String:
		return fmt.Sprintf("string[%d]", t.Size)
	case Pointer:
		return t.Elems[0].String() + " *"
	case Struct:
		return types.Text(t.C)
	case Array:
		if t.C != nil {
			return types.Text(t.C)
		}
		return fmt.Sprintf("%s[%d]", t.Elems[0], t.Depth)
	case Tuple:
		var b []string
		for i, e := range t.Elems {
			if len(t.Names) > 0 {
				b = append(b, "."+t.Names[i]+" = "+e.String())
			} else {
				b = append(b, e.String())
			}
		}
		if len(t.Names) > 0 {
			return "record { " + strings.Join(b, ", ") + " }"
		}
		return "(" + strings.Join(b, ",") + ")"
	}
	return kindNames[t.Kind]
}

// isNumber reports whether values are one number in a register.
func (t Type) isNumber() bool {
	return t.is(Int, Bool, Pointer, KStack, UStack, KSym, Errno, Signal, Syscall, Timestamp, MAC)
}

// isInt reports whether it supports arithmetic.
func (t Type) isInt() bool { return t.is(Int, Bool, Pointer) }

// asNumber is the type of an aggregation's value in expressions.
func (t Type) asNumber() Type {
	if t.isScalarAggregate() {
		return Type{Kind: Int, Size: 8, Signed: t.Signed}
	}
	return t
}

// unsigned reports whether a number is unsigned; truth values are signed in
// arithmetic.
func (t Type) unsigned() bool { return t.is(Int, Pointer) && !t.Signed }

// isTuple reports whether it is a tuple without names: in a key each element is a
// part.
func (t Type) isTuple() bool { return t.Kind == Tuple && len(t.Names) == 0 }

// isAggregate reports whether it is a map's value that aggregates values.
func (t Type) isAggregate() bool { return t.Kind >= Count }

// bytes is the size of a value in memory, a multiple of 8.
func (t Type) bytes() int {
	switch t.Kind {
	case None:
		return 0
	case String, Struct, Array:
		return roundUp8(t.Size)
	case Buffer:
		return 8 + roundUp8(t.Size)
	case Tuple:
		n := 0
		for _, e := range t.Elems {
			n += e.bytes()
		}
		return n
	case Avg, Min, Max, Stats:
		return 16
	case Inet, TSeries:
		return 24
	}
	return 8
}

func roundUp8(n int) int { return (n + 7) &^ 7 }

// offset is the offset of element i of a tuple.
func (t Type) offset(i int) (n int) {
	for _, e := range t.Elems[:i] {
		n += e.bytes()
	}
	return n
}

// equal reports whether values can be copied without conversion.
func (t Type) equal(u Type) bool {
	return t.Kind == u.Kind && t.Size == u.Size && t.Least == u.Least && t.Signed == u.Signed && t.Depth == u.Depth && (t.Kind == Array || sameC(t.C, u.C)) && slices.Equal(t.Names, u.Names) &&
		t.Low == u.Low && t.High == u.High && t.Step == u.Step && t.Format == u.Format && slices.EqualFunc(t.Elems, u.Elems, Type.equal)
}

// isLonger reports whether t, with the elements of u, has text or bytes for which u has no room.
func (t Type) isLonger(u Type) bool {
	if t.Kind == Tuple {
		for i := range t.Elems {
			if t.Elems[i].isLonger(u.Elems[i]) {
				return true
			}
		}
	}
	return t.is(String, Buffer) && t.Size > u.Size
}

// elementFor returns the element of a tuple for element i of t: in a record the one
// of that name.
func (t Type) elementFor(other Type, i int) (j int, ok bool) {
	if len(other.Names) == 0 {
		return i, len(t.Names) == 0
	}
	j = slices.Index(t.Names, other.Names[i])
	return j, j >= 0
}

// unify returns the type that holds values of both, and whether there is one.
func unify(t, u Type) (Type, bool) {
	switch {
	case t.Kind == None:
		return u, true
	case u.Kind == None:
		return t, true
	case t.Kind == Int && u.Kind == Int:
		// One is converted to the other: the first one determines the type, except
		// for its size.
		if u.Size > t.Size {
			t.Size = u.Size
		}
		if t.Least == 0 || u.Least == 0 {
			t.Least = 0
		} else {
			t.Least = max(t.Least, u.Least)
		}
		if !sameC(t.C, u.C) {
			t.C = nil
		}
		return t, true
	case t.Kind == Bool && u.Kind == Int || t.Kind == Int && u.Kind == Bool:
		return typeInt, true
	case t.Kind != u.Kind:
		return t, false
	case t.is(String, Buffer):
		t.Size = max(t.Size, u.Size)
		return t, true
	case t.Kind == Tuple:
		if len(t.Elems) != len(u.Elems) || len(t.Names) != len(u.Names) {
			return t, false
		}
		elems := make([]Type, len(t.Elems))
		for i := range elems {
			j, ok := u.elementFor(t, i)
			if !ok {
				return t, false
			}
			if elems[i], ok = unify(t.Elems[i], u.Elems[j]); !ok {
				return t, false
			}
		}
		t.Elems = elems
		return t, true
	case t.Kind == Pointer && (t.Of != nil || u.Of != nil):
		if t.Of == u.Of {
			return u, true
		}
		t.Of = nil
		return t, t.equal(u)
	case t.Kind == TSeries:
		t.Signed = t.Signed && u.Signed
		u.Signed = t.Signed
		return t, t.equal(u)
	case t.is(Sum, Avg, Min, Max, Stats):
		t.Signed = t.Signed && u.Signed
		return t, true
	}
	return t, t.equal(u)
}
