package event

import "testing"

func TestInSource(t *testing.T) {
	for text, want := range map[string]SourcePlace{
		"p fs/read_write.c:450 $stack0": {File: "fs/read_write.c", Line: 450},
		"r:x a.c:1":                     {File: "a.c", Line: 1},
		"p:g/ inline:kmalloc":           {Inline: "kmalloc"},
	} {
		if got, ok := InSource(text); !ok || got != want {
			t.Errorf("%q: %+v, %v", text, got, ok)
		}
	}
	for _, text := range []string{"", "p", "p vfs_read", "p mod:sym", "p mod.x:sym", "p a.c:0", "p a.c:1x", "p a.c:99999999999", "p a:7", "w a.c:7", "p inline:", "-:x a.c:7", "p /bin/sh:0x10"} {
		if got, ok := InSource(text); ok {
			t.Errorf("%q: %+v", text, got)
		}
	}
	for _, tt := range [][2]string{
		{"p fs/a.c:7 a=%di", "p:p_fs_a_c_7 f+8 a=%di"},
		{"p:g/ inline:g", "p:g/p_inline_g f+8"},
		{"p:g/e  inline:g  b=%ax # c", "p:g/e f+8 b=%ax"},
		{"p:e a.c:7", "p:e f+8"},
	} {
		if got := AtPlace(tt[0], "f+8"); got != tt[1] {
			t.Errorf("%q: got %q, want %q", tt[0], got, tt[1])
		}
	}
}
