package bpf

import (
	"fmt"
	"strings"
	"testing"
)

// put is assembly that writes a text of up to 8 bytes to the frame.
func put(off, text string) string {
	return "lddw r6, 0x" + strings.TrimLeft(hex64(text), " ") + "\nstxdw [r10-" + off + "], r6\n"
}

func hex64(text string) string {
	const digits = "0123456789abcdef"
	out := ""
	for _, c := range []byte(text) {
		out = string(digits[c>>4]) + string(digits[c&15]) + out
	}
	return "0" + out
}

func TestStrncmp(t *testing.T) {
	for _, tt := range []struct {
		a    string
		n    int64
		b    string
		want int64
	}{
		{"abc", 3, "abc", 0}, {"abc", 4, "abc", 0}, {"abd", 3, "abc", 1}, {"abb", 3, "abc", -1}, {"abcd", 3, "abc", 0},
		{"abcd", 4, "abc", 1}, {"ab", 4, "abc", -1}, {"x", 0, "y", 0}, {"\xff", 1, "a", 1}, {"a\x00b", 4, "a\x00c", 0},
	} {
		src := put("8", tt.a) + put("16", tt.b) + `
			mov r1, r10
			add r1, -8
			mov r2, ` + itoa(tt.n) + `
			mov r3, r10
			add r3, -16
			call 182
			exit`
		if _, r0, err := runHelper(t, Kprobe, src, NoEnv{}); int64(r0) != tt.want || err != nil {
			t.Errorf("strncmp(%q, %d, %q) = %d, %v, want %d", tt.a, tt.n, tt.b, int64(r0), err, tt.want)
		}
	}
}

func TestSnprintf(t *testing.T) {
	env := &fakeEnv{}
	env.put(guestName, "kernel\x00")
	for _, tt := range []struct {
		format string
		size   int64 // of the destination
		values int64 // bytes
		want   string
		r0     int64
	}{
		{"%d-%s", 16, 16, "7-kernel", 9}, {"%d-%s", 4, 16, "7-k", 9}, {"%d-%s", 0, 16, "", 9}, {"%d%pks", 16, 16, "7kernel", 8}, {"%x%px", 32, 16, "70xffff800000001000", 20},
		{"none", 8, 0, "none", 5}, {"%d", 8, 0, "", -errInval}, {"%d", 8, 7, "", -errInval}, {"%f", 8, 8, "", -errInval}, {"%d", 8, 104, "", -errInval},
	} {
		src := put("8", tt.format) + `
			mov r6, 7
			stxdw [r10-128], r6
			lddw r6, ` + fmt.Sprintf("%#x", uint64(guestName)) + `
			stxdw [r10-120], r6
			mov r1, r10
			add r1, -64
			mov r2, ` + itoa(tt.size) + `
			mov r3, r10
			add r3, -8
			mov r4, r10
			add r4, -128
			mov r5, ` + itoa(tt.values) + `
			call 165
			exit`
		v, r0, err := runHelper(t, Kprobe, src, env)
		got, _, _ := strings.Cut(string(v.stack[StackSize-64:][:max(tt.size, 1)]), "\x00")
		if int64(r0) != tt.r0 || err != nil || tt.r0 > 0 && tt.size > 0 && got != tt.want {
			t.Errorf("%q of %d bytes: %q, r0 %d, %v, want %q, %d", tt.format, tt.size, got, int64(r0), err, tt.want, tt.r0)
		}
	}
}

// TestKernelHelpers: what a program asks of the current task.
func TestKernelHelpers(t *testing.T) {
	env := kernelEnv()
	env.now, env.owner, env.cgroup = 99, 5<<32|6, 77
	for helper, want := range map[string]uint64{"35": env.task, "158": env.task, "15": 5<<32 | 6, "80": 77, "125": 99, "160": 99, "174": 0} {
		if _, r0, err := runHelper(t, Kprobe, "call "+helper+"\nexit", env); r0 != want || err != nil {
			t.Errorf("helper %s: %#x, %v, want %#x", helper, r0, err, want)
		}
	}
	if _, r0, err := runHelper(t, Kprobe, "call 7\nmov r6, r0\ncall 7\nxor r0, r6\nexit", env); r0>>32 != 0 || err != nil {
		t.Error(r0, err)
	}
}
