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
	exParam                   // num: positional parameter; 0 is $#, the number of parameters
	exCall                    // name, args
	exUnary                   // name is the operator: ! ~ - * and casts of pointers
	exBinary                  // name is the operator
	exCond                    // args: condition, then, else
	exCast                    // cast, args[0]
	exTuple                   // args; of a record names
	exField                   // args[0] . name, or . num
	exIndex                   // args[0] [ args[1] ]
	exBlock                   // body, and args[0] if it has a value
	exType                    // cast: only as the operand of sizeof and offsetof
	exIncDec                  // name is ++ or --; args[0]; post
)

// expr is an expression.
type expr struct {
	kind exprKind
	Span
	bare  Span // without the parentheses around it; none: there are no parentheses
	name  string
	text  string
	num   uint64
	below bool // num is negative: an enumerator
	args  []*expr
	post  bool
	short bool // of exCond: it is a ?: b, whose a is evaluated once
	body  []*stmt
	names []string
	cast  *typeName // of exCast, exType, and of a variable that is declared with a type

	typ  Type // set by the checker
	decl *variable
	info *expr // of typeinfo: its value as the last pass has found it
	own  bool  // of a name: it has the meaning of this package, even if there is a macro of that name
	site int   // if it can fail: its site in checker.sites

	// Of a part of a C value: its C type, its first bit, and the width of a bit
	// field.
	c          btf.Type
	bit, width uint64
	arrow      bool // it is written with ->
	raw        bool // its bytes are wanted, even of text
	followed   bool // of an argument that is a reference: its pointer is wanted
	inRecord   bool // it is a field of an event's record
	located    bool // the field has the place of its data
	inFile     bool // of uaddr: of a variable of the file that the probe is in
}

// isTuple reports whether it is a tuple without names.
func (e *expr) isTuple() bool { return e.kind == exTuple && len(e.names) == 0 }

// typeName is a type as it is written.
type typeName struct {
	Span
	c     btf.Type
	whole bool  // an array of as many elements as there are
	of    *expr // typeof: the type of this expression, with c nil
	stars int   // the number of stars after that
	text  int   // a string of at least that many bytes; 0: not a string
	sized bool  // the number is explicit
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
	stReturn // value, the result that the probed function returns, or nil
	stBlock  // body
)

// discarded is stmt.op of an expression whose value is deliberately not used.
const discarded = "_"

// stmt is a statement.
type stmt struct {
	kind stmtKind
	Span
	open  bool   // it ends its block, and no semicolon follows it
	op    string // of stAssign: = += and so on; of stExpr: discarded
	to    *expr
	value *expr
	bound *expr
	body  []*stmt
	other []*stmt

	decl *variable // of loops and stLet

	chosen choice // of an if with the condition comptime E: the decision of the last pass
}

// choice is the branch of an if that is compiled.
type choice uint8

const (
	notChosen choice = iota
	chosenBody
	chosenOther
)

// attachPoint is a probe's place as written.
type attachPoint struct {
	Span
	text     string // with parameters substituted
	word     string // the provider as it is written
	provider string // in full
	target   string // the text after the provider
	file     string // the name, without a path, of the file of the guest that the target is in; "": the target says where it is
	source   bool   // that is a place in the source
	kernel   bool   // target is a function of the kernel itself: after vmlinux:
	among    bool   // one of several by a pattern for probe types: it may match nothing
}

// probeDef is a probe: attach points, predicate, and statements.
type probeDef struct {
	Span
	points []attachPoint
	cond   *expr
	body   []*stmt
	types  Types // for the names in it: its files' types come before the guest's
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
	name     string
	key      []Type // nil: no key
	keyed    int    // its use: 0 not known yet, 1 without a key, 2 with one
	value    Type
	limit    uint64 // entries, from let
	declared token  // its kind, from let
	lru      bool   // a full map drops the least recently used element
	funcs    bool   // all its values come from the builtin func
}

// config is the settings of config blocks.
type config struct {
	maxKeys   uint64
	maxProbes int // places that a probe may have
	maxString int
	trailer   string // printed after a string that was truncated
	printMaps bool
	stackMode string // how stacks are printed
	missing   string // the handling of probes at missing functions
	strict    bool   // fail if the output is incomplete
	mangled   bool   // the script has set cpp_demangle to false, which has no effect

	noDebugInfo bool // stacks are printed without source lines and inlined functions
}

// script is a parsed script.
type script struct {
	*source
	params []string
	named  namedArgs
	unsafe bool // Options.Unsafe
	files  bool // Options.Files
	config config
	probes []*probeDef
	maps   []*mapDef // in order of first appearance
	byName map[string]*mapDef

	types       Types                    // of the guest, or of the probe that is read or checked; nil if unknown
	guest       Types                    // of the guest
	filesTypes  func(*attachPoint) Types // of the file of an attach point; nil: no guest is there to ask
	unsure      bool                     // an error is in a probe of a file, whose types are not known
	defined     map[cName]btf.Type
	enumerators map[string]enumerator // of the script
	macros      map[string][]*macro   // of a name: they differ in the number or the kinds of their parameters
	left        []*Error              // warnings of functions that patterns skip
	notes       []string              // on parts of the script that have no effect
	effort      effort
}

// enumerator is a name for a number.
type enumerator struct {
	value uint64
	of    *btf.Enum
}
