package script

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf/btf"

	"github.com/guestprobe/guestprobe/guest/types"
)

// isPlace reports whether an expression is a part of memory, by address: the guest's,
// or, for a variable that is a structure or an array, the program's.
func (e *expr) isPlace() bool {
	switch e.kind {
	case exUnary:
		return e.name == "*"
	case exField:
		return e.inRecord && !e.located || e.args[0].typ.is(Struct, Pointer)
	case exIndex:
		return true
	}
	return false
}

// isArgument reports whether it is a parameter of the function.
func (e *expr) isArgument() bool {
	return e.kind == exField && e.args[0].kind == exBuiltin && e.args[0].name == "args"
}

// field checks the operand and the name of a dot or an arrow.
func (c *checker) field(e *expr) (Type, error) {
	of := e.args[0]
	if e.isArgument() {
		return c.argument(e)
	}
	if of.kind == exMap && c.byName[of.name].value.Kind == Stats {
		return c.statsField(e)
	}
	t, err := c.part(of)
	if err != nil || t.Kind == None {
		return Type{}, err
	}
	if t.Kind == Tuple {
		if i := slices.Index(t.Names, e.name); i >= 0 {
			e.num = uint64(i)
			return t.Elems[i], nil
		}
		switch {
		case len(t.Names) > 0:
			err := c.errorAt(e.Span, "Record does not contain a field named '%s'", cmp.Or(e.name, strconv.FormatUint(e.num, 10)))
			if m := nearestName(e.name, slices.Clone(t.Names)); m != "" {
				return t, err.hint("did you mean %s?", m)
			}
			return t, err
		case e.name != "":
			return t, c.errorAt(e.Span, "a tuple's fields are numbers, as $t.0")
		case e.num >= uint64(len(t.Elems)):
			return t, c.errorAt(e.Span, "Invalid tuple index: %d. Found %d elements in tuple.", e.num, len(t.Elems))
		}
		return t.Elems[e.num], nil
	}
	in := t
	if t.Kind == Pointer {
		in = t.Elems[0]
	}
	switch {
	case in.Kind != Struct:
		err := c.errorAt(e.Span, "Can not access field '%s' on expression of type '%s'", e.name, t)
		if t.isInt() {
			return t, err.hint("say what it points to, as ((struct file *)arg0)->f_pos")
		}
		return t, err
	case e.name == "":
		return t, c.errorAt(e.Span, "Can not access index '%d' on expression of type '%s'", e.num, t)
	}
	whole := c.completeType(in.C)
	f, found, ok := types.Member(whole, e.name)
	switch {
	case !ok:
		return t, c.unknownStructError(e, whole)
	case !found:
		err := c.errorAt(e.Span, "Struct/union of type '%s' does not contain a field named '%s'", types.Text(whole), e.name)
		if m := nearestName(e.name, memberNames(whole)); m != "" {
			return t, err.hint("did you mean %s?", m)
		}
		return t, err
	}
	e.c, e.bit, e.width = f.Type, f.Offset, f.Width
	e.site = c.addSite(readAt(c.points, e))
	if e.width > 0 && e.bit%8+e.width > 64 {
		return t, c.errorAt(e.Span, "the bit field '%s' is in more than 8 bytes", e.name)
	}
	return fromC(f.Type), nil
}

func (c *checker) unknownStructError(e *expr, t btf.Type) error {
	return c.errorAt(e.Span, "Unknown struct/union: '%s'", types.Text(t)).hint("the guest's types have its name only: define it in the script")
}

// memberNames are the names of members, also of those in anonymous structures.
func memberNames(t btf.Type) (names []string) {
	queue := []btf.Type{t}
	for n := 0; n < len(queue) && n < 256; n++ {
		ms, _ := types.Members(queue[n])
		for _, m := range ms {
			if m.Name != "" {
				names = append(names, m.Name)
			} else {
				queue = append(queue, m.Type)
			}
		}
	}
	return names
}

// index checks an element of an array, of the target of a pointer, of a string, or of
// a tuple.
func (c *checker) index(e *expr) (Type, error) {
	t, err := c.part(e.args[0])
	if err != nil {
		return t, err
	}
	it, err := c.value(e.args[1])
	switch {
	case err != nil || t.Kind == None:
		return Type{}, err
	case it.Kind != None && it.Kind != Int:
		return t, c.errorAt(e.args[1].Span, "The array index operator [] only accepts integer indices. Got: %s", it)
	}
	n, isConst := c.constant(e.args[1])
	elem, size := Type{}, 0
	switch t.Kind {
	case Tuple:
		if !isConst || n < 0 {
			return t, c.errorAt(e.args[1].Span, "a tuple's index is a number that is known before")
		}
		e.kind, e.num, e.name, e.args = exField, uint64(n), "", e.args[:1]
		return c.field(e)
	case Pointer:
		if elem = t.Elems[0]; elem.sizeInC() == 0 {
			return t, c.errorAt(e.Span, "The array index operator [] cannot be used on a pointer to an unsized type (%s).", t)
		}
	case Array:
		elem, size = t.Elems[0], t.Depth
	case String:
		elem, size = Type{Kind: Int, Size: 1, Signed: true}, t.Size
		if a, ok := types.Strip(e.args[0].c).(*btf.Array); ok {
			elem, size = fromC(a.Type), int(a.Nelems)
		}
	default:
		return t, c.errorAt(e.Span, "The array index operator [] can only be used on arrays, pointers, and tuples, found %s.", t)
	}
	if isConst && t.Kind != Pointer && (n < 0 || n >= int64(size) && size > 0) {
		return t, c.errorAt(e.Span, "the index %d is out of bounds for array of size %d", n, size)
	}
	e.num = uint64(size)
	if isConst || t.Kind == Pointer {
		e.num = 0
	}
	if e.num > 0 {
		e.args[1].site = c.addSite(failureAt(e.Span, siteBounds))
	}
	e.site = c.addSite(readAt(c.points, e))
	return elem, nil
}

// siteBounds is the warning for an index outside of an array.
const siteBounds = "Array access out of bounds. This can lead to unexpected results"

func (c *checker) dereference(e *expr) (Type, error) {
	t, err := c.part(e.args[0])
	switch {
	case err != nil || t.Kind == None:
		return t, err
	case t.Kind == Struct:
		return t, c.errorAt(e.Span, "Can not dereference struct/union of type '%s'. It is not a pointer.", t)
	case t.Kind == Int: // as in bpftrace, an address of such a number
		e.site = c.addSite(readAt(c.points, e))
		return typeUint, nil
	case t.Kind != Pointer:
		return t, c.errorAt(e.Span, "Can not dereference type '%s'. It is not a pointer.", t)
	case t.Elems[0].Kind == Void:
		return t, c.errorAt(e.Span, "Can not dereference a value of type '%s'", t).hint("say what it points to, as *(uint64 *)arg0")
	}
	e.site = c.addSite(readAt(c.points, e))
	return t.Elems[0], nil
}

// addressOf checks &PLACE of the guest's memory, &$x, and &@m. Variables are in the
// program's memory, whose addresses are never the guest's, and which all reads accept
// (bpf.HelperReadKernel). The address of a map is its handle.
func (c *checker) addressOf(e *expr) (Type, error) {
	of := e.args[0]
	switch {
	case of.kind == exVar:
		t, err := c.expr(of)
		if err != nil || t.Kind == None {
			return Type{}, err
		}
		p := pointerTo(t)
		p.Of = of.decl
		return p, nil
	case of.kind == exMap && len(of.args) == 0:
		if m := c.byName[of.name]; (m.keyed == 0 || m.value.Kind == None) && c.final {
			return Type{}, c.undefinedMapError(of.Span, of.name)
		}
		return pointerTo(Type{Kind: Void}), nil
	}
	of.raw = true
	t, err := c.part(of)
	if err != nil || t.Kind == None {
		return t, err
	}
	root := of
	for root.isPlace() && root.args[0].typ.Kind != Pointer && root.kind != exUnary {
		root = root.args[0]
	}
	switch {
	case !root.isPlace() && root.kind != exVar:
		return t, c.errorAt(e.Span, "only variables, maps and values in the guest's memory have an address").hint("as &$x, or &args.file->f_path")
	case of.width > 0:
		return t, c.errorAt(e.Span, "a bit field has no address")
	}
	return pointerTo(t), nil
}

// comparison checks == and != of values that are not numbers.
func (c *checker) comparison(e *expr, a, b Type) (Type, error) {
	if e.name != "==" && e.name != "!=" {
		what := map[Kind]string{String: "strings", Tuple: "tuples", Array: "arrays", Struct: "structures", Buffer: "buffers"}[a.Kind]
		return a, c.errorAt(e.Span, "The %s operator can not be used on %s", e.name, what)
	}
	if _, ok := unify(a, b); !ok {
		return a, c.errorAt(e.Span, "Type mismatch for '%s': comparing %s with %s", e.name, a, b)
	}
	return typeBool, nil
}

// pointerMath checks an operator with a pointer as one operand.
func (c *checker) pointerMath(e *expr, a, b Type) (Type, error) {
	switch {
	case a.Kind == None || b.Kind == None:
		return Type{}, nil
	case e.name == "+" && a.Kind == Pointer && b.Kind != Pointer, e.name == "-" && b.Kind != Pointer:
		return a, nil
	case e.name == "+" && a.Kind != Pointer:
		return b, nil
	}
	return a, c.errorAt(e.Span, "The %s operator can not be used on expressions of types %s, %s", e.name, a, b).hint("(uint64)POINTER is a number")
}

// namedType is the type of a name, or of the operand of typeof.
func (c *checker) namedType(n *typeName) (Type, error) {
	if n.of == nil {
		return fromC(n.c), nil
	}
	t, err := c.operandType(n.of)
	for range n.stars {
		t = pointerTo(t)
	}
	return t, err
}

func (c *checker) castType(e *expr) (Type, error) {
	from, err := c.value(e.args[0])
	if err != nil {
		return from, err
	}
	if e.cast.text > 0 {
		return c.castToText(e, from)
	}
	to, err := c.namedType(e.cast)
	if err != nil || to.Kind == None {
		return to, err
	}
	wrong := func() *Error { return c.errorAt(e.Span, "Cannot cast from '%s' to '%s'", from, to) }
	if e.cast.whole && to.Kind == Array {
		n := to.Elems[0].sizeInC()
		switch {
		case from.Kind == None:
			return Type{}, nil
		case n == 0 || from.Size%n != 0:
			return to, c.errorAt(e.Span, "Could not determine size of the array")
		}
		to = arrayOf(to.Elems[0], from.Size/n)
	}
	switch {
	case from.Kind == Array && from.String() == to.String():
		return from, nil // as it is
	case to.Kind == Struct:
		return to, wrong().hint("write (%s *): a pointer's fields are read where it points to", to)
	case to.Kind == String:
		return to, wrong().hint("str(POINTER) reads a string")
	case to.Kind == Void, to.Kind == Array && to.C != nil, from.Kind == Array && from.C != nil: // such numbers have no arithmetic
		return to, wrong()
	case from.Kind == None || from.isInt() && to.isInt() || from.Kind == String && to.Kind == Bool:
		return to, nil
	case to.Kind == Array && to.Elems[0].is(Int, Bool) && (from.Kind == String && (from.Size == to.Size || e.own) || from.is(Int, Bool) && to.Size <= 8):
		return to, nil
	case from.Kind == Array && to.Kind == Int && from.Size <= to.Size:
		return to, nil
	}
	return to, wrong()
}

// castToText checks (string)E, and (string[N])E of a string that fits into N bytes.
func (c *checker) castToText(e *expr, from Type) (Type, error) {
	n := e.cast.text
	switch {
	case from.Kind == None:
		return from, nil
	case from.Kind != String:
		return from, c.errorAt(e.Span, "Cannot cast from '%s' to 'string'", from).hint("str(POINTER) reads a string")
	case !e.cast.sized:
		return from, nil
	case from.Size > n:
		return from, c.errorAt(e.Span, "Cannot cast from '%s' to 'string[%d]'", from, n)
	}
	return typeString(n), nil
}

// sizeOf checks sizeof, with C's value.
func (c *checker) sizeOf(e *expr) (Type, error) {
	of := e.args[0]
	t, err := c.operandType(of)
	if err != nil {
		return t, err
	}
	ct := of.c
	switch of.kind {
	case exType:
		ct = of.cast.c
	case exInt: // an enumerator is a number of 8 bytes, as in bpftrace
		ct = nil
	}
	if ct == nil {
		switch e.num = uint64(cmp.Or(t.Least, t.sizeInC())); t.Kind {
		case String:
			e.num = uint64(t.Size)
		case Tuple:
			n, _ := t.tupleInC()
			e.num = uint64(n)
		}
		return typeUint, nil
	}
	n, ok := types.Size(ct)
	if !ok {
		return t, c.errorAt(of.Span, "type '%s' has no size", types.Text(ct))
	}
	e.num = n
	return typeUint, nil
}

// tupleInC is the size and the alignment of a tuple in bpftrace, which lays it out as
// a structure.
func (t Type) tupleInC() (size, align int) {
	align = 1
	for _, e := range t.Elems {
		n, by := cmp.Or(e.Least, e.sizeInC()), 1
		switch {
		case e.Kind == Tuple:
			n, by = e.tupleInC()
		case e.Kind == String:
			n = e.Size
		case e.isNumber():
			n = cmp.Or(n, 8)
			by = n
		}
		size = (size+by-1)/by*by + n
		align = max(align, by)
	}
	return (size + align - 1) / align * align, align
}

// offsetOf checks offsetof of a structure, or of an expression of that type.
func (c *checker) offsetOf(e *expr) (Type, error) {
	t, err := c.operandType(e.args[0])
	if err != nil || t.Kind == None {
		return typeUint, err
	}
	if t.Kind != Struct {
		return t, c.errorAt(e.args[0].Span, "'%s' is not a C type.", t)
	}
	var path []string
	f := e.args[1]
	for ; f.kind == exField && f.name != ""; f = f.args[0] {
		path = append(path, f.name)
	}
	if f.kind != exBuiltin {
		return t, c.errorAt(e.args[1].Span, "offsetof() takes the name of a field, as d_name.len")
	}
	in, at := t.C, uint64(0)
	path = append(path, f.name)
	for i := len(path) - 1; i >= 0; i-- {
		in = c.completeType(types.Strip(in))
		m, found, ok := types.Member(in, path[i])
		switch {
		case !ok:
			return t, c.unknownStructError(e.args[0], in)
		case !found:
			err := c.errorAt(e.args[1].Span, "'%s' has no field named '%s'", types.Text(in), path[i])
			if near := nearestName(path[i], memberNames(in)); near != "" {
				return t, err.hint("did you mean %s?", near)
			}
			return t, err
		case m.Width > 0:
			return t, c.errorAt(e.args[1].Span, "'%s' is a bit field", path[i])
		}
		at, in = at+m.Offset/8, m.Type
	}
	e.num = at
	return typeUint, nil
}

// constantOf returns the enumerator, or the constant of C's headers, of a name.
func (s *script) constantOf(name string) (x enumerator, ok bool) {
	x, ok = s.enumerators[name]
	if !ok && s.types != nil {
		x.value, x.of, ok = s.types.Enumerator(name)
	}
	if !ok {
		x.value, ok = headers[name]
	}
	if call, is := strings.CutPrefix(name, "__NR_"); is && !ok {
		var n int
		n, ok = syscallNumber(call)
		x.value = uint64(n)
	}
	return x, ok
}

// enumerator turns a name that is an enumerator, or a constant of C's headers, into a
// number, and reports whether it did.
func (c *checker) enumerator(e *expr) bool {
	x, ok := c.constantOf(e.name)
	if !ok {
		return false
	}
	e.kind, e.num, e.c = exInt, x.value, nil
	e.below = x.of != nil && x.of.Signed && x.value > math.MaxInt64
	if x.of != nil { // anonymous enumerations have enumerators too
		e.c = x.of
	}
	return true
}

// taskType is the type of curtask: a pointer if the guest's types include the
// structure that the profile finds (in Linux a task, in the built-in guest the
// beginning of a task's stack).
func (c *checker) taskType() Type {
	for _, tag := range []string{"task_struct", "stack_info"} {
		if t := c.typeNamedIn(c.guest, types.TagStruct, tag); t != nil { // whatever a program has of that name
			return pointerTo(fromC(t))
		}
	}
	return typeUint
}
