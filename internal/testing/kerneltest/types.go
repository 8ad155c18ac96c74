package kerneltest

import (
	"bytes"
	"encoding/binary"

	"github.com/cilium/ebpf/btf"
)

// Types returns a section .BTF with functions and structures of Linux 6.12, as
// far as tests need them, and with some that no kernel has. Offsets are
// invented.
func Types() []byte {
	integer := func(name string, size uint32, e btf.IntEncoding) *btf.Int {
		return &btf.Int{Name: name, Size: size, Encoding: e}
	}
	pointer := func(t btf.Type) *btf.Pointer { return &btf.Pointer{Target: t} }
	member := func(name string, t btf.Type, at uint32) btf.Member {
		return btf.Member{Name: name, Type: t, Offset: btf.Bits(8 * at)}
	}
	bits := func(name string, t btf.Type, bit, width uint32) btf.Member {
		return btf.Member{Name: name, Type: t, Offset: btf.Bits(bit), BitfieldSize: btf.Bits(width)}
	}
	void := (*btf.Void)(nil)
	char, short, word, quad := integer("char", 1, btf.Unsigned), integer("short int", 2, btf.Signed), integer("int", 4, btf.Signed), integer("long int", 8, btf.Signed)
	byt, unsigned, ulong := integer("unsigned char", 1, btf.Unsigned), integer("unsigned int", 4, btf.Unsigned), integer("long unsigned int", 8, btf.Unsigned)
	boolean, wide, double := integer("_Bool", 1, btf.Bool), integer("__int128", 16, btf.Signed), &btf.Float{Name: "double", Size: 8}
	size := &btf.Typedef{Name: "size_t", Type: &btf.Typedef{Name: "__kernel_size_t", Type: ulong}}
	ssize := &btf.Typedef{Name: "ssize_t", Type: quad}
	loff := &btf.Typedef{Name: "loff_t", Type: quad}
	pid := &btf.Typedef{Name: "pid_t", Type: word}
	index := integer("__ARRAY_SIZE_TYPE__", 4, btf.Unsigned)
	kind := &btf.Enum{Name: "kind", Size: 4, Values: []btf.EnumValue{{Name: "SOME", Value: 1}}}
	small := &btf.Enum{Name: "small", Size: 1, Values: []btf.EnumValue{{Name: "LITTLE", Value: 1}}}

	hash := &btf.Struct{Size: 8, Members: []btf.Member{member("hash", unsigned, 0), member("len", unsigned, 4)}}
	qstr := &btf.Struct{Name: "qstr", Size: 16, Members: []btf.Member{
		member("", &btf.Union{Size: 8, Members: []btf.Member{member("", hash, 0), member("hash_len", ulong, 0)}}, 0),
		member("name", pointer(&btf.Const{Type: byt}), 8),
	}}
	dentry := &btf.Struct{Name: "dentry", Size: 0x68}
	dentry.Members = []btf.Member{
		member("d_flags", unsigned, 0), member("d_parent", pointer(dentry), 0x18), member("d_name", qstr, 0x20),
		member("d_iname", &btf.Array{Index: index, Type: byt, Nelems: 40}, 0x38),
	}
	path := &btf.Struct{Name: "path", Size: 16, Members: []btf.Member{member("mnt", pointer(&btf.Fwd{Name: "vfsmount"}), 0), member("dentry", pointer(dentry), 8)}}
	file := &btf.Struct{Name: "file", Size: 0x80}
	file.Members = []btf.Member{
		member("f_mode", unsigned, 8), member("f_path", path, 0x40), member("f_pos", loff, 0x50), member("kind", kind, 0x58), member("small", small, 0x5c),
		bits("three", unsigned, 8*0x60, 3), bits("low", word, 8*0x60+3, 5), bits("byte", unsigned, 8*0x61, 8), bits("across", unsigned, 8*0x61+6, 30),
		bits("wide", ulong, 8*0x68+3, 61), bits("beyond", ulong, 8*0x70+4, 62), bits("flag", boolean, 8*0x60+31, 1),
		member("private_data", pointer(void), 0x78),
		member("short", short, 0x7c), member("ok", boolean, 0x7e), member("letter", char, 0x7f),
	}
	clone := &btf.Struct{Name: "kernel_clone_args", Size: 0x58, Members: []btf.Member{member("flags", ulong, 0), member("pidfd", pointer(word), 8), member("exit_signal", word, 0x20)}}
	pair := &btf.Struct{Name: "pair", Size: 16, Members: []btf.Member{member("a", ulong, 0), member("b", ulong, 8)}}
	large := &btf.Struct{Name: "large", Size: 24, Members: []btf.Member{member("a", ulong, 0), member("b", ulong, 8), member("c", ulong, 16)}}

	params := func(p ...btf.FuncParam) []btf.FuncParam { return p }
	param := func(name string, t btf.Type) btf.FuncParam { return btf.FuncParam{Name: name, Type: t} }
	b, err := btf.NewBuilder(nil, nil)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	function := func(name string, returns btf.Type, p []btf.FuncParam) {
		if _, err := b.Add(&btf.Func{Name: name, Type: &btf.FuncProto{Return: returns, Params: p}, Linkage: btf.GlobalFunc}); err != nil {
			panic("BUG: " + err.Error())
		}
	}
	function("vfs_read", ssize, params(param("file", pointer(file)), param("buf", pointer(char)), param("count", size), param("pos", pointer(loff))))
	function("ksys_read", ssize, params(param("fd", unsigned), param("buf", pointer(char)), param("count", size)))
	function("kfree", void, params(param("object", pointer(&btf.Const{Type: void}))))
	function("kernel_clone", pid, params(param("args", pointer(clone))))
	function("do_exit", void, params(param("code", quad)))
	function("schedule", void, nil)
	function("get_dentry", pointer(dentry), params(param("k", kind), param("s", small), param("ok", &btf.Const{Type: boolean}), param("letter", char), param("short_one", short)))
	function("odd_words", large, params(param("first", word), param("both", pair), param("x", double), param("all", large), param("wide", wide), param("more", pair), param("last", word)))
	function("callback", void, params(param("fn", pointer(&btf.FuncProto{Return: word, Params: params(param("", pointer(void)), param("", void))})),
		param("argv", pointer(pointer(&btf.Const{Type: char}))), param("grid", pointer(&btf.Array{Index: index, Type: word, Nelems: 4})), param("self", &btf.Const{Type: pointer(&btf.Volatile{Type: word})}), param("", void)))
	out, err := b.Marshal(nil, nil)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return out
}

// ModuleTypes returns the section .BTF of a module of a kernel with the types in
// base: a function mod_read, whose argument is the kernel's struct file.
func ModuleTypes(base []byte) []byte {
	spec, err := btf.LoadSpecFromReader(bytes.NewReader(base))
	if err != nil {
		panic("BUG: " + err.Error())
	}
	file, err := spec.AnyTypeByName("file")
	if err != nil {
		panic("BUG: " + err.Error())
	}
	id, err := spec.TypeID(file)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	le := binary.LittleEndian
	names := le.Uint32(base[20:]) // the module's names follow the kernel's, and so do its types
	first := uint32(0)
	for range spec.All() {
		first++
	}
	word := func(b []byte, v ...uint32) []byte {
		for _, x := range v {
			b = le.AppendUint32(b, x)
		}
		return b
	}
	const own = "mod_read\x00file\x00"
	body := word(nil, 0, 2<<24, uint32(id)) // pointer to file
	body = word(body, 0, 13<<24|1, 0)       // prototype, one parameter
	body = word(body, names+9, first)
	body = word(body, names, 12<<24, first+1) // function
	b := append(le.AppendUint16(nil, 0xeb9f), 1, 0)
	b = word(b, 24, 0, uint32(len(body)), uint32(len(body)), uint32(len(own)))
	return append(append(b, body...), own...)
}
