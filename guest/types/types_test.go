package types

import (
	"encoding/binary"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf/btf"

	_ "github.com/guestprobe/guestprobe/internal/testing/fuzzing"
	"github.com/guestprobe/guestprobe/internal/testing/kerneltest"
)

func read(t testing.TB, section []byte, base *btf.Spec) *btf.Spec {
	t.Helper()
	spec, err := Read(section, base)
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

func kernel(t testing.TB) *Info {
	t.Helper()
	return New(read(t, kerneltest.Types(), nil), nil)
}

func TestPrototype(t *testing.T) {
	info := kernel(t)
	for name, want := range map[string]string{
		"vfs_read":     "vfs_read(struct file *file, char *buf, size_t count, loff_t *pos) -> ssize_t",
		"kfree":        "kfree(const void *object) -> void",
		"kernel_clone": "kernel_clone(struct kernel_clone_args *args) -> pid_t",
		"schedule":     "schedule(void) -> void",
		"get_dentry":   "get_dentry(enum kind k, enum small s, const _Bool ok, char letter, short int short_one) -> struct dentry *",
		"odd_words":    "odd_words(int first, struct pair both, double x, struct large all, __int128 wide, struct pair more, int last) -> struct large",
		"callback":     "callback(int (*fn)(void *, ...), const char **argv, int (*grid)[4], volatile int *const self, ...) -> void",
	} {
		p := info.Func("", name)
		if p == nil {
			t.Errorf("%s is not there", name)
			continue
		}
		if got := Prototype(name, p); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	if info.Func("", "file") != nil || info.Func("mod", "vfs_read") != nil || info.Struct("vfs_read") != nil {
		t.Error("found what is not there")
	}
	if got := Parameters(info.Func("", "callback")); len(got) != 5 || got[0] != (Parameter{"fn", "int (*)(void *, ...)"}) || got[4] != (Parameter{"", "..."}) {
		t.Errorf("parameters %q", got)
	}
	if got := Text(info.Struct("qstr").(*btf.Struct).Members[0].Type); got != "union {...}" {
		t.Errorf("a union without a tag is %q", got)
	}
}

// TestArguments: gcc 12 passes the parameters of odd_words in these words.
func TestArguments(t *testing.T) {
	info := kernel(t)
	for name, want := range map[string][]int{
		"vfs_read":  {1, 2, 3, 4},
		"odd_words": {2, 3, 0, 7, 5, 10, 12}, // the first is where the result goes
		"schedule":  {},
		"callback":  {1, 2, 3, 4, 0},
	} {
		if got := Arguments(info.Func("", name)); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
	long := &btf.Int{Name: "long", Size: 8}
	float := &btf.Float{Name: "double", Size: 8}
	mixed := &btf.Struct{Size: 16, Members: []btf.Member{{Type: float}, {Type: long, Offset: 64}}}
	packed := &btf.Struct{Size: 9, Members: []btf.Member{{Type: &btf.Int{Size: 1}}, {Type: long, Offset: 8}}}
	floats := &btf.Struct{Size: 8, Members: []btf.Member{{Type: &btf.Array{Type: &btf.Float{Size: 4}, Nelems: 2}}}}
	eighty := &btf.Float{Name: "long double", Size: 16}
	p := &btf.FuncProto{Return: (*btf.Void)(nil)}
	for _, x := range []btf.Type{mixed, packed, floats, eighty, &btf.Struct{}, &btf.Typedef{Type: long}} {
		p.Params = append(p.Params, btf.FuncParam{Type: x})
	}
	if got, want := Arguments(p), []int{0, 7, 0, 9, 0, 2}; !slices.Equal(got, want) {
		t.Errorf("mixed structures: %v, want %v", got, want)
	}
}

func TestMember(t *testing.T) {
	info := kernel(t)
	for _, tt := range []struct {
		tag, name     string
		offset, width uint64
		found         bool
	}{
		{"file", "f_path", 0x40 * 8, 0, true},
		{"file", "low", 0x60*8 + 3, 5, true},
		{"qstr", "len", 4 * 8, 0, true}, // in a structure in a union, both without names
		{"qstr", "hash_len", 0, 0, true},
		{"qstr", "name", 8 * 8, 0, true},
		{"qstr", "", 0, 0, false},
		{"file", "nothing", 0, 0, false},
	} {
		f, found, ok := Member(&btf.Const{Type: info.Struct(tt.tag)}, tt.name)
		if !ok || found != tt.found || f.Offset != tt.offset || f.Width != tt.width {
			t.Errorf("%s.%s: %+v, %v, %v", tt.tag, tt.name, f, found, ok)
		}
	}
	if _, _, ok := Member(&btf.Int{Size: 4}, "x"); ok {
		t.Error("a number has members")
	}
}

// chain is a section of n types, each pointing to the next, with a function's name at
// the first.
func chain(n int) []byte {
	const names = "\x00f\x00"
	le := binary.LittleEndian
	b := append(le.AppendUint16(nil, 0xeb9f), 1, 0)
	for _, v := range []int{headerSize, 0, typeSize * n, typeSize * n, len(names)} {
		b = le.AppendUint32(b, uint32(v))
	}
	for i := range n {
		name, kind := uint32(0), uint32(2)
		if i == 0 {
			name, kind = 1, 8 // typedef
		}
		b = le.AppendUint32(le.AppendUint32(le.AppendUint32(b, name), kind<<24), uint32((i+2)%(n+1)))
	}
	return append(b, names...)
}

// TestHostile: types that lead to one another without end cost a bounded stack.
func TestHostile(t *testing.T) {
	// Bounded is not the same everywhere: under the race detector a call has six times the stack, and 1 GB is the usual limit.
	defer debug.SetMaxStack(debug.SetMaxStack(4 << 30))
	if info := New(read(t, chain(MaxTypes), nil), nil); info.Func("", "f") != nil {
		t.Error("a pointer is a function")
	}
	for what, b := range map[string][]byte{
		"200001 types, more than 200000": chain(MaxTypes + 1),
		"more than 16777216":             append(chain(5), make([]byte, MaxBTF)...),
		"are damaged":                    chain(5)[:50],
		"of kind 31":                     append(append(slices.Clone(chain(1)[:headerSize]), 0, 0, 0, 0, 0, 0, 0, 31, 0, 0, 0, 0), 0, 'f', 0),
	} {
		if _, err := Read(b, nil); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("got %v, want %s", err, what)
		}
	}
	deep := btf.Type(&btf.Int{Name: "int", Size: 4})
	for range 100 {
		deep = &btf.Pointer{Target: &btf.FuncProto{Return: deep, Params: []btf.FuncParam{{Type: deep}, {Type: deep}}}}
	}
	if text := Text(deep); len(text) > 16*maxText || !strings.Contains(text, "...") {
		t.Errorf("%d bytes of text", len(text))
	}
}

// TestModules: a module's types refer to the kernel's, and go with it.
func TestModules(t *testing.T) {
	section := kerneltest.Types()
	base := read(t, section, nil)
	module := read(t, kerneltest.ModuleTypes(section), base)
	info := New(base, func(name string) *btf.Spec {
		if name == "mod" {
			return module
		}
		return nil
	})
	if p := info.Func("mod", "mod_read"); p == nil || Prototype("mod_read", p) != "mod_read(struct file *file) -> void" {
		t.Errorf("mod_read is %v", p)
	}
	if info.Func("mod", "vfs_read") != nil || info.Func("", "mod_read") != nil || info.Func("gone", "mod_read") != nil {
		t.Error("a function is of the wrong module")
	}
	if _, err := Read(chain(MaxModuleTypes+1), base); err == nil {
		t.Error("a module may have any number of types")
	}
}

func FuzzTypes(f *testing.F) {
	f.Add(kerneltest.Types())
	f.Add(chain(3))
	f.Fuzz(func(t *testing.T, b []byte) {
		spec, err := Read(b, nil)
		if err != nil {
			return
		}
		info := New(spec, nil)
		for typ, err := range spec.All() {
			if err != nil {
				return
			}
			Text(typ)
			Member(typ, "x")
			Size(typ)
			IsCharPointer(typ)
			IsCharArray(typ)
			if fn, ok := typ.(*btf.Func); ok {
				if p := info.Func("", fn.Name); p != nil {
					Prototype(fn.Name, p)
					Parameters(p)
					if got := Arguments(p); len(got) != len(p.Params) {
						t.Errorf("%d numbers for %d parameters", len(got), len(p.Params))
					}
				}
			}
		}
	})
}
