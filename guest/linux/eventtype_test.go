package linux

import (
	"fmt"
	"testing"

	"github.com/cilium/ebpf/btf"
)

// TestEventPointers: pointers in records have the types that their texts say, and void for what is not known.
func TestEventPointers(t *testing.T) {
	file := &btf.Struct{Name: "file", Size: 8}
	find := func(tag, name string) btf.Type {
		switch tag + " " + name {
		case "struct file":
			return file
		case "enum reason":
			return &btf.Enum{Name: "reason", Size: 4}
		}
		return nil
	}
	var show func(btf.Type) string
	show = func(t btf.Type) string {
		switch t := t.(type) {
		case *btf.Pointer:
			return show(t.Target) + "*"
		case *btf.Int:
			return fmt.Sprintf("%s/%d%s", t.Name, t.Size, map[bool]string{true: "s", false: "u"}[t.Encoding == btf.Signed])
		case *btf.Struct:
			return "struct " + t.Name
		case *btf.Void:
			return "void"
		}
		return fmt.Sprintf("%T", t)
	}
	for text, want := range map[string]string{
		"const char *":                      "char/1s*",
		"const char *const *":               "char/1s**",
		"const char __user *const __user *": "char/1s**",
		"struct file *":                     "struct file*",
		"const struct file **":              "struct file**",
		"struct other *":                    "void*",
		"void *":                            "void*",
		"unsigned long *":                   "unsigned long/8u*",
		"size_t *":                          "size_t/8u*",
		"loff_t *":                          "loff_t/8s*",
		"int *":                             "int/4s*",
		"u32 *":                             "u32/4u*",
		"__s16*":                            "__s16/2s*",
		"unsigned char *":                   "unsigned char/1u*",
		"some_t *":                          "void*",
		"char *********** *":                "void*********", // at most 9
	} {
		f := EventField{Name: "x", Type: text, Size: 8}
		got, located := f.CType(find)
		if s := show(got); s != want || located {
			t.Errorf("%q: %s (located %v), want %s", text, s, located, want)
		}
	}
}

// TestEventEnums: a field of an enumeration that is known has its type, if the size is the same.
func TestEventEnums(t *testing.T) {
	find := func(tag, name string) btf.Type {
		if tag == "enum" && name == "reason" {
			return &btf.Enum{Name: "reason", Size: 4}
		}
		return nil
	}
	for _, tt := range []struct {
		text string
		size uint64
		enum bool
	}{{"enum reason", 4, true}, {"const enum reason", 4, true}, {"enum reason", 8, false}, {"enum other", 4, false}} {
		f := EventField{Name: "x", Type: tt.text, Size: tt.size}
		got, _ := f.CType(find)
		if _, ok := got.(*btf.Enum); ok != tt.enum {
			t.Errorf("%s of %d bytes: %T", tt.text, tt.size, got)
		}
		if got, _ := f.CType(nil); got.(*btf.Int).Size != uint32(tt.size) {
			t.Errorf("%s without types: %v", tt.text, got)
		}
	}
}
