package cli

import "testing"

// TestFileTypeText: types of files' parameters, as bpftrace prints them.
func TestFileTypeText(t *testing.T) {
	for typ, want := range map[string]string{
		"int": "int", "int *": "int*", "struct Foo *": "struct Foo*", "const char **": "const char**", "char *const": "char* const",
		"void *const *": "void* const*", "char (*)[4]": "char (*)[4]", "void (*)(int *)": "void (*)(int *)", "unsigned long int": "unsigned long int",
	} {
		if got := fileTypeText(typ); got != want {
			t.Errorf("%s: %q, want %q", typ, got, want)
		}
	}
}
