package script

import "github.com/cilium/ebpf/btf"

// exprKind says what an expression is.
type exprKind uint8

const (
	exInt     exprKind = iota // num
	exString                  // text
	exVar                     // name, with $; slot
	exMap                     // name, with @; args are the key
	exBuiltin                 // name
	exParam                   // num: positional parameter; 0 is their number
	exCall                    // name, args
	exUnary                   // name is the operator: ! ~ - * and casts of pointers
	exBinary                  // name is the operator
	exCond                    // args: condition, then, else
	exCast                    // cast, args[0]
	exTuple                   // args; of a record names
	exField                   // args[0] . name, or . num
	exIndex                   // args[0] [ args[1] ]
	exBlock                   // body, and where it has a value args[0]
	exType                    // cast: only as what sizeof and offsetof are of
	exIncDec                  // name is ++ or --; args[0]; post
)

// expr is an expression.
type expr struct {
	kind exprKind
	Span
	name  string
	text  string
	num   uint64
	below bool // num is one below 0: an enumerator
	args  []*expr
	post  bool
	short bool // of exCond: it is a ?: b, whose a is evaluated once
	body  []*stmt
	names []string
	cast  *typeName // of exCast, exType, and of a variable that is declared with its type

	typ  Type // by the checker
	decl *variable
	site int // of what can fail in it: see checker.sites

	// Of a part of what C has: its type there, where it begins, and of a bit field its width.
	c          btf.Type
	bit, width uint64
	raw        bool // its bytes are wanted, also of text
	followed   bool // of an argument that is a reference: its pointer is wanted
}

// isTuple reports whether it is a tuple without names.
func (e *expr) isTuple() bool { return e.kind == exTuple && len(e.names) == 0 }

// typeName is a type as it is written.
type typeName struct {
	Span
	c     btf.Type
	whole bool  // an array of as many elements as there are
	of    *expr // typeof: the type is that of this, with c nil
	stars int   // behind that
	text  int   // a string of so many bytes at least, 0 for none
}

// stmtKind says what a statement is.
type stmtKind uint8

const (
	stExpr     stmtKind = iota // value
	stAssign                   // to op value
	stLet                      // to = value, which may be nil
	stIf                       // cond, body, other
	stUnroll                   // num times body
	stWhile                    // cond, body
	stForRange                 // to from value up to bound, body
	stForMap                   // to each element of value, body
	stBreak
	stContinue
	stReturn // value, which the probed function returns, or nil
	stBlock  // body
)

// stmt is a statement.
type stmt struct {
	kind stmtKind
	Span
	op    string // of stAssign: = += and so on
	to    *expr
	value *expr
	bound *expr
	body  []*stmt
	other []*stmt

	decl *variable // of loops and stLet
}

// attachPoint is where a probe is, as it is written.
type attachPoint struct {
	Span
	text     string // with parameters put in
	provider string // in full
	target   string // what stands behind the provider
	source   bool   // that is a place in the source
}

// probeDef is a probe: attach points, predicate, and what it does.
type probeDef struct {
	Span
	points []attachPoint
	cond   *expr
	body   []*stmt
}

// variable is a scratch variable, from its first assignment to the end of the block.
type variable struct {
	name  string
	typ   Type
	fixed bool // its type is declared
}

// mapDef is a map of the script.
type mapDef struct {
	Span
	name  string
	key   []Type // nil: it has no key
	keyed int    // how it is used: 0 not known yet, 1 without a key, 2 with one
	value Type
	limit uint64 // entries, from let
	lru   bool   // what was used longest ago makes room
	funcs bool   // its values are names of functions by func alone
}

// config is what config blocks set.
type config struct {
	maxKeys   uint64
	maxString int
	printMaps bool
	stackMode string // how stacks are printed
	missing   string // what becomes of probes at functions that are not there
	strict    bool   // it fails where it is not of everything
}

// script is a parsed script.
type script struct {
	*source
	params []string
	unsafe bool // Options.Unsafe
	files  bool // Options.Files
	config config
	probes []*probeDef
	maps   []*mapDef // in the order in which they first appear
	byName map[string]*mapDef

	types       Types // of the guest; nil: none are known
	defined     map[cName]btf.Type
	enumerators map[string]enumerator // of the script
	macros      map[string]*macro
	left        []*Error // warnings of what patterns leave out
	effort      effort
}

// enumerator is a name for a number.
type enumerator struct {
	value uint64
	of    *btf.Enum
}
