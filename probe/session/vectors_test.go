package session_test

import (
	"debug/elf"
	"encoding/binary"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/elfbuild"
	"github.com/guestprobe/guestprobe/internal/testing/kerneltest"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/event"
	"github.com/guestprobe/guestprobe/probe/session"
)

// answer is what a write of a command to kprobe_events gives.
type answer struct {
	errno string // or OK
	text  string
	caret string
}

// exceptions are the vectors for which guestprobe answers otherwise, with what
// it answers and why.
var exceptions = map[string]struct {
	answer
	why string
}{
	"p:ev43 nomod:foo":      {answer{"EINVAL", "Invalid probed address or symbol", "7"}, "a bare guest has no modules that could be loaded later"},
	"p:ev51 0x1000":         {answer{"ENOENT", "Invalid probed address or symbol", "7"}, "no code can come to an address outside every symbol later"},
	"p vfs_read +0(%ax)+10": {answer{"EINVAL", "Dereference has text after its closing brace", "18"}, "the kernel drops +10 silently; its own test lists this as bad"},
}

// referenceKernel is an image with the names of the kernel that was observed, and code
// and data where that has them.
func referenceKernel(t *testing.T) *guest.Image {
	t.Helper()
	const text, black, data guest.GVA = 0xffffffff81001000, 0xffffffff81200000, 0xffffffff82000000
	code := slices.Repeat([]byte{0x90}, 0x3000)
	for at := 0x3000; at < 0x23000; at += 5 {
		code = append(code, 0xb8, 0, 0, 0, 0) // mov eax, imm32: there is no boundary 4 bytes after one
	}
	copy(code, "\xf3\x0f\x1e\xfa\xe8\x00\x00\x00\x00") // endbr64; call, as to __fentry__
	profile := make([]byte, guest.ProfileSize)
	for at, v := range map[int]uint64{guest.ProfileMagicAt: guest.ProfileMagic, guest.ProfileStackMask: ^uint64(0x3fff), guest.ProfileStackMagic: 1} {
		binary.LittleEndian.PutUint64(profile[at:], v)
	}
	for at, off := range map[int]uint32{guest.ProfileMagicOff: 0, guest.ProfileCPUOff: 8, guest.ProfilePIDOff: 12, guest.ProfileTGIDOff: 16, guest.ProfileCommOff: 24} {
		binary.LittleEndian.PutUint32(profile[at:], off)
	}
	f := elfbuild.File{Entry: text, Extra: []elfbuild.Extra{{Name: ".BTF", Data: kerneltest.Types()}}, Segments: []elfbuild.Segment{
		{Section: ".text", VAddr: text, PAddr: 0x1001000, Flags: elf.PF_R | elf.PF_X, Data: code},
		{Section: ".kprobes.text", VAddr: black, PAddr: 0x1200000, Flags: elf.PF_R | elf.PF_X, Data: slices.Repeat([]byte{0x90}, 0x400)},
		{Section: ".data", VAddr: data, PAddr: 0x2000000, Flags: elf.PF_R | elf.PF_W, Data: append(profile, make([]byte, 0x400)...)},
	}}
	for _, s := range []struct {
		name string
		addr guest.GVA
		size uint64
	}{
		{"vfs_read", text, 0x370}, {"kfree", text + 0x400, 0x80}, {"do_exit", text + 0x800, 0x40}, {"kernel_clone", text + 0x1000, 0x300},
		{"__pfx_vfs_read", text + 0x1400, 0x10}, {"huge", text + 0x3000, 0x20000},
		{"get_kprobe", black, 0x40}, {"do_int3", black + 0x40, 0x40}, {"__switch_to", black + 0x80, 0x40}, {"ftrace_stub", black + 0xc0, 0x10},
		{guest.SymProfile, data, guest.ProfileSize}, {"_sdata", data + 0x100, 0x40}, {"jiffies", data + 0x140, 8},
	} {
		kind := elf.STT_FUNC
		if s.addr >= data {
			kind = elf.STT_OBJECT
		}
		f.Symbols = append(f.Symbols, elfbuild.Symbol{Name: s.name, Addr: s.addr, Size: s.size, Type: kind})
	}
	img, err := f.Image()
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// reply attaches by one command, where there is what the vector presupposes.
func (b *bare) reply(command string) (answer, *session.Error) {
	b.Helper()
	defer func() {
		if _, err := b.s.Detach(); err != nil {
			b.Fatal(err)
		}
	}()
	if rest, ok := strings.CutPrefix(command, "p:kprobes/testevent kernel_clone "); ok && rest != "" || strings.HasPrefix(command, "r:kprobes/testevent") {
		b.attach(`p:kprobes/testevent kernel_clone abcd=\1`)
	}
	_, err := b.apply(command)
	if err == nil {
		return answer{errno: "OK"}, nil
	}
	e := session.ErrorOf(err)
	if e.Code == "" {
		b.Fatalf("%q: %v", command, err)
	}
	caret := ""
	if e.Column != nil {
		caret = fmt.Sprint(*e.Column)
	}
	return answer{probe.ErrnoName(e.Errno), e.Text, caret}, e
}

// rows reads the observed results.
func rows(t *testing.T, name string) []string {
	t.Helper()
	b, err := os.ReadFile("../event/testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(b)), "\n")
}

// TestKernelVectors compares the answers of a session with those that Linux 6.12 was seen to give to
// writes to kprobe_events.
func TestKernelVectors(t *testing.T) {
	img := referenceKernel(t)
	b := newBareWith(t, img, nil, session.Options{Types: typesOf(t, img)})
	seen := map[string]bool{}
	for _, row := range rows(t, "vectors.tsv") {
		if strings.HasPrefix(row, "# ") {
			continue
		}
		col := strings.Split(row, "\t")
		command, want := col[1], answer{col[2], col[3], col[4]}
		if x, ok := exceptions[command]; ok {
			want, seen[command] = x.answer, true
		}
		got, err := b.reply(command)
		if want.errno != "OK" && want.text == "" {
			// The kernel logs nothing for these: the texts are ours.
			if err == nil || got.errno != want.errno || err.Text == "" {
				t.Errorf("%q: got %+v, want %s and some text", command, got, want.errno)
			}
			continue
		}
		if got != want {
			t.Errorf("%q:\n got %+v\nwant %+v", command, got, want)
		}
	}
	for _, row := range rows(t, "syntax.tsv")[1:] {
		col := strings.Split(row, "\t")
		command, want := col[1], answer{col[3], event.Code(col[2]).Text(), col[0]}
		if x, ok := exceptions[command]; ok {
			want, seen[command] = x.answer, true
		}
		got, err := b.reply(command)
		if got != want || err != nil && exceptions[command].why == "" && err.Syntax != col[2] {
			t.Errorf("%q:\n got %+v\nwant %+v", command, got, want)
		}
	}
	for command := range exceptions {
		if !seen[command] {
			t.Errorf("exception %q is in no vector", command)
		}
	}
}
