//go:build linuxrules

package analyze

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/guest/elf"
	"github.com/guestprobe/guestprobe/guest/linux"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/probe/flow"
)

// These two tests hold the kernel's rules against the kernel: scripts/linux-rules.sh
// boots one under an emulator, puts a kprobe on every byte of many functions, and
// keeps in the folder $LINUX_RULES what /sys/kernel/debug/kprobes/list said and
// the text as it was in memory, after the kernel had rewritten it at boot.

// rulesKernel returns the kernel in the folder.
func rulesKernel(t *testing.T) (img *image, dir string) {
	t.Helper()
	dir = os.Getenv("LINUX_RULES")
	img, err := load(filepath.Join(dir, "vmlinuz"))
	if err != nil {
		t.Fatal(err)
	}
	return img, dir
}

// mainText returns the section .text.
func (img *image) mainText(t *testing.T) *elf.Part {
	for i := range img.Sections {
		if s := &img.Sections[i]; s.Name == ".text" {
			return s
		}
	}
	t.Fatal("no .text")
	return nil
}

// TestLinuxPick chooses the functions, and says where the text is in memory.
func TestLinuxPick(t *testing.T) {
	img, dir := rulesKernel(t)
	all, _ := img.functions()
	left, names := img.findLeft(all), map[string]int{}
	sites, err := img.kernel.Sites()
	if err != nil {
		t.Fatal(err)
	}
	for i := range all {
		names[all[i].name]++
	}
	var b strings.Builder
	n := 0
	for i := range all {
		f := &all[i]
		// Kprobe events take functions that ftrace knows, by a name of their own.
		if left.reason(f) != "" || names[f.name] > 1 || len(f.code) > 400 {
			continue
		}
		if _, ok := sites.Begins(f.addr, linux.Ftrace); !ok {
			continue
		}
		if n++; n%300 == 7 {
			fmt.Fprintln(&b, f.name, len(f.code))
		}
	}
	text := img.mainText(t)
	for name, s := range map[string]string{
		"functions": b.String(), "text.at": fmt.Sprintf("%#x %#x\n", uint32(text.Addr)&0x7fff_ffff, len(text.Data)),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(s), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// TestLinuxRules compares: the same instruction boundaries, and the same sites
// optimized.
func TestLinuxRules(t *testing.T) {
	img, dir := rulesKernel(t)
	live, err := os.ReadFile(filepath.Join(dir, "text"))
	text := img.mainText(t)
	if err != nil || len(live) < len(text.Data) {
		t.Fatalf("%d bytes of text, want %d: %v", len(live), len(text.Data), err)
	}
	text.Data = live[:len(text.Data)]
	said := readListed(t, filepath.Join(dir, "serial"))
	all, _ := img.functions()
	sites, err := img.kernel.Sites()
	if err != nil {
		t.Fatal(err)
	}
	patched := func(lo, hi uint64) string {
		if what, ok := sites.PatchAt(lo, hi, linux.Always); ok {
			return what.String()
		}
		return ""
	}
	var major, minor int
	fmt.Sscanf(img.kernel.Version, "%d.%d", &major, &minor)
	older := major < 6 || major == 6 && minor < 9
	places, optimized, functions := 0, 0, 0
	for i := range all {
		fn := &all[i]
		list := said[fn.name]
		if list == nil {
			continue
		}
		functions++
		f := flow.Analyze(flow.Input{Addr: fn.addr, Code: fn.code, Exception: sites.Exception, Patched: patched})
		for _, in := range f.Insts() {
			reg, no := f.Region(in.Off, flow.KernelThunks)
			want, probed := list[in.Off]
			delete(list, in.Off)
			if !probed {
				if no == nil {
					t.Errorf("%s+%#x: no kprobe in Linux, a region of %d bytes here", fn.name, in.Off, reg.Len)
				}
				continue
			}
			places++
			if want {
				optimized++
			}
			if got := no == nil && !(older && img.before69(f, &reg)); got != want {
				t.Errorf("%s+%#x: optimized %v in Linux, here %v; % x", fn.name, in.Off, want, no, in.Bytes())
			}
		}
		for off := range list {
			t.Errorf("%s+%#x: a kprobe in Linux, no instruction here", fn.name, off)
		}
	}
	t.Logf("Linux %s: %d functions, %d places, %d of them optimized", img.kernel.Version, functions, places, optimized)
	if optimized < 500 {
		t.Error("too few to say anything")
	}
}

// readListed reads lines of the kernel's list, with "L" before each: by function and
// offset whether the probe is optimized.
func readListed(t *testing.T, path string) map[string]map[int]bool {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	out := map[string]map[int]bool{}
	for sc := bufio.NewScanner(f); sc.Scan(); {
		w := strings.Fields(sc.Text())
		if len(w) < 4 || w[0] != "L" {
			continue
		}
		name, offset, _ := strings.Cut(w[3], "+0x")
		var off int
		if _, err := fmt.Sscanf(offset, "%x", &off); err != nil {
			t.Fatalf("%q: %v", sc.Text(), err)
		}
		if out[name] == nil {
			out[name] = map[int]bool{}
		}
		out[name][off] = strings.Contains(sc.Text(), "[OPTIMIZED]")
	}
	return out
}

// before69 reports whether an older kernel refuses the region all the same: until
// 6.5 jumps to indirect thunks count as indirect jumps, and both count with
// RETPOLINE, too; until 6.8 can_boost refuses all of groups 2, 3 and 4, and of
// group 5 all but the jump.
func (img *image) before69(f *flow.Func, reg *flow.Region) bool {
	lo, hi, _ := img.RangeBetween("__indirect_thunk_start", "__indirect_thunk_end")
	for _, i := range f.Insts() {
		t, ok := i.Target(f.Addr() + uint64(i.Off))
		if len(f.IndirectJumps()) > 0 || ok && i.Class() != x86.ClassCall && t >= lo && t < hi {
			return true
		}
	}
	for _, i := range reg.Insts {
		if i.Map != x86.Map0 {
			continue
		}
		switch i.Opcode {
		case 0xc0, 0xc1, 0xd0, 0xd1, 0xd2, 0xd3, 0xf6, 0xf7, 0xfe:
			return true
		case 0xff:
			return i.Reg() != 4
		}
	}
	return false
}
