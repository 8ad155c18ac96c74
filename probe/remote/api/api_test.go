package api

import (
	"encoding/json"
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestHex(t *testing.T) {
	for _, tc := range []struct {
		in   string
		want Hex
		text string
	}{
		{`"0x0"`, 0, "0x0000000000000000"},
		{`"16"`, 16, "0x0000000000000010"},
		{`"0xffffffff80001000"`, 0xffffffff80001000, "0xffffffff80001000"},
		{`"18446744073709551615"`, 1<<64 - 1, "0xffffffffffffffff"},
	} {
		var h Hex
		if err := json.Unmarshal([]byte(tc.in), &h); err != nil {
			t.Errorf("%s: %v", tc.in, err)
			continue
		}
		if h != tc.want || h.String() != tc.text {
			t.Errorf("%s = %#x, %s; want %#x, %s", tc.in, uint64(h), h, uint64(tc.want), tc.text)
		}
		out, err := json.Marshal(h)
		if err != nil || string(out) != `"`+tc.text+`"` {
			t.Errorf("marshal %s: %s, %v", tc.in, out, err)
		}
	}
	for _, bad := range []string{`"0x"`, `""`, `"0x10000000000000000"`, `"-1"`, `12`, `"main"`} {
		var h Hex
		if err := json.Unmarshal([]byte(bad), &h); err == nil {
			t.Errorf("%s was accepted as %s", bad, h)
		}
	}
}

func TestErrorUnwraps(t *testing.T) {
	for _, tc := range []struct {
		err  *Error
		is   []error
		not  []error
		text string
	}{
		{&Error{Code: CodeProbeNotFound, Errno: "ENOENT", Message: "no probe \"x\""},
			[]error{ErrProbeNotFound, syscall.ENOENT}, []error{ErrSymbolNotFound, syscall.EINVAL},
			`no probe "x": ENOENT [probe_not_found]`},
		{&Error{Code: "not_boundary", Errno: "EILSEQ", Message: "m", Detail: "d"},
			[]error{syscall.EILSEQ}, []error{ErrProbeNotFound}, "m (d): EILSEQ [not_boundary]"},
		{&Error{Code: "symbol_not_found", Message: "m"},
			[]error{ErrSymbolNotFound}, []error{syscall.ENOENT}, "m [symbol_not_found]"},
		{&Error{Code: "new_in_a_later_version", Errno: "ENOTHING", Message: "m"},
			nil, []error{ErrProbeNotFound}, "m: ENOTHING [new_in_a_later_version]"},
	} {
		b, err := json.Marshal(ErrorBody{*tc.err})
		if err != nil {
			t.Fatal(err)
		}
		var body ErrorBody
		if err := json.Unmarshal(b, &body); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(tc.err, &body.Error); d != "" {
			t.Errorf("over the wire (-want +got):\n%s", d)
		}
		for _, want := range tc.is {
			if !errors.Is(&body.Error, want) {
				t.Errorf("%v is not %v", &body.Error, want)
			}
		}
		for _, not := range tc.not {
			if errors.Is(&body.Error, not) {
				t.Errorf("%v is %v", &body.Error, not)
			}
		}
		if got := body.Error.Error(); got != tc.text {
			t.Errorf("text %q, want %q", got, tc.text)
		}
	}
}

func TestErrnoByName(t *testing.T) {
	for name, want := range map[string]syscall.Errno{
		"": 0, "EPERM": 1, "EINVAL": 22, "EILSEQ": 84, "EHWPOISON": 133, "einval": 0, "E": 0,
	} {
		if got := ErrnoByName(name); got != want {
			t.Errorf("ErrnoByName(%q) = %d, want %d", name, got, want)
		}
	}
}

func TestParseSocket(t *testing.T) {
	at := "/" + strings.Repeat("a", MaxSocketPath-1)
	for _, tc := range []struct {
		in, want string
		errno    error
	}{
		{"/run/x.sock", "/run/x.sock", nil},
		{"unix:///run/x.sock", "/run/x.sock", nil},
		{"rel.sock", "rel.sock", nil},
		{at, at, nil},
		{"unix://" + at, at, nil},
		{at + "a", "", syscall.ENAMETOOLONG},
		{"", "", syscall.EINVAL},
		{"unix://", "", syscall.EINVAL},
		{"tcp://127.0.0.1:80", "", syscall.EINVAL},
		{"/a\x00b", "", syscall.EINVAL},
	} {
		got, err := ParseSocket(tc.in)
		if got != tc.want || !errors.Is(err, tc.errno) {
			t.Errorf("ParseSocket(%q) = %q, %v; want %q, %v", tc.in, got, err, tc.want, tc.errno)
		}
	}
}

func TestUserSocket(t *testing.T) {
	if got := UserSocket(""); got != "" {
		t.Errorf("without a runtime directory: %q", got)
	}
	if got, want := UserSocket("/run/user/7"), "/run/user/7/guestprobed/guestprobed.sock"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
