package http

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// sourceLine returns the text of a line of the built-in guest's source, "FILE:LINE".
func sourceLine(t *testing.T, at string) string {
	t.Helper()
	file, line, _ := strings.Cut(at, ":")
	b, err := os.ReadFile(filepath.Join("../../../guest/builtin", file))
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(line)
	lines := strings.Split(string(b), "\n")
	if err != nil || n < 1 || n > len(lines) {
		t.Fatal(at, err)
	}
	return lines[n-1]
}

// TestFrames names the callers at each direct call of the built-in guest's kernel: where
// the source is known, the line that has the call has the callee's name.
func TestFrames(t *testing.T) {
	h := serveFake(t, nil)
	img := h.g.Image()
	calls, right, inlined := 0, 0, 0
	for _, sym := range img.Symbols() {
		if sym.Kind != guest.SymFunc || sym.User {
			continue
		}
		d, err := h.s.disas.Function(img, fmt.Sprintf("%#x", uint64(sym.Addr)))
		if err != nil {
			continue
		}
		for i, inst := range d.Insts[:max(1, len(d.Insts))-1] {
			name, ok := strings.CutPrefix(inst.Text, "call ")
			callee, err := img.Lookup(name)
			if !ok || err != nil {
				continue
			}
			frames := newNamer(h.g).frames([]guest.GVA{callee.Addr, guest.GVA(d.Insts[i+1].Addr)}, true)
			if frames[0].Addr != api.Hex(callee.Addr) || !strings.HasPrefix(frames[0].Symbol, name+"+0x0/") {
				t.Errorf("%s is %+v", name, frames[0])
			}
			outer := frames[len(frames)-1]
			if want := fmt.Sprintf("%s+%#x/%#x", sym.Name, d.Insts[i+1].Offset, sym.Size); outer.Symbol != want || outer.Inlined {
				t.Errorf("the outermost frame is %+v, want %s", outer, want)
			}
			at := slices.IndexFunc(frames, func(f api.Frame) bool { return f.Addr == outer.Addr })
			if !strings.Contains(frames[at].Source, ".c:") && !strings.Contains(frames[at].Source, ".h:") {
				continue
			}
			calls++
			if strings.Contains(sourceLine(t, frames[at].Source), name) {
				right++
			}
			for k := at; frames[k].Inlined; k++ {
				inlined++
				if frames[k+1].Source != "" && !strings.Contains(sourceLine(t, frames[k+1].Source), frames[k].Symbol) {
					t.Errorf("%+v: line %q does not call %+v", frames[k+1], sourceLine(t, frames[k+1].Source), frames[k])
				}
			}
		}
	}
	t.Logf("%d of %d calls are on the line of the source; %d inlined", right, calls, inlined)
	if calls < 100 || right < calls*9/10 || inlined < 10 {
		t.Fail()
	}
}

// TestStack: a hit has its stack where that was asked for, in the kernel's code and in the
// user's, and with its source; others have none.
func TestStack(t *testing.T) {
	h := serveFake(t, nil)
	s, err := h.c.Events(h.ctx, api.StreamEvents{Probes: []api.ProbeSpec{
		{Def: "p:k vfs_read", Stack: true, Post: true}, {Def: "p:none vfs_read"}, {Def: "r:r vfs_read", Stack: true}, {Def: "p:u user_hot", Stack: true},
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, p := range next[api.Start](h, s, api.RecordStart).Probes {
		if p.Stack != (p.Name != "kprobes/none") || p.Stack && p.Runs == api.RunsInGuest {
			t.Errorf("%+v", p)
		}
	}
	d, err := h.c.Disas(h.ctx, "work_files", false)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(d.Insts, func(i api.DisasInst) bool { return i.Text == "call vfs_read" })
	ret := d.Insts[i+1].Addr
	rule, ok := h.g.img.FrameRule(guest.GVA(ret - 1))
	if !ok || rule.Base != guest.FrameRBP {
		t.Fatalf("frame information %+v, %v: want one by RBP", rule, ok)
	}
	// Above work_files is what called it, somewhere in user_hot.
	hot, err := h.g.img.Lookup("user_hot")
	if err != nil {
		t.Fatal(err)
	}
	b, err := h.g.BytesAt(fakeStack, 64<<10)
	if err != nil {
		t.Fatal(err)
	}
	sp := uint64(4096) - 512
	binary.LittleEndian.PutUint64(b[sp:], uint64(ret))
	bp := sp + 128
	binary.LittleEndian.PutUint64(b[bp+uint64(rule.CFA+rule.Return):], uint64(hot.Addr)+1)
	at := func(r *probe.Regs) { r.RSP, r.RBP = uint64(fakeStack)+sp, uint64(fakeStack)+bp }
	if !h.g.hit(t, 0, "vfs_read", 0, at) {
		t.Fatal("no probe is at vfs_read")
	}
	if !h.g.hit(t, 0, "user_hot", 0, func(r *probe.Regs) { r.RSP = uint64(fakeStack) + 60<<10 }) {
		t.Fatal("no probe is at user_hot")
	}
	got := map[string][]api.Frame{}
	for range 4 {
		x := next[api.Hit](h, s, api.RecordHit)
		got[x.Probe+" "+x.Stage] = x.Stack
	}
	k, u := got["kprobes/k pre"], got["kprobes/u pre"]
	if len(k) != 3 || !strings.HasPrefix(k[0].Symbol, "vfs_read+0x") || k[1].Addr != ret || !strings.HasPrefix(k[1].Symbol, "work_files+0x") ||
		!strings.Contains(sourceLine(t, k[1].Source), "vfs_read(") || !strings.HasPrefix(k[2].Symbol, "user_hot+0x1/") {
		t.Errorf("stack of vfs_read: %+v", k)
	}
	if len(u) == 0 || !strings.HasPrefix(u[0].Symbol, "user_hot+0x") || !strings.Contains(u[0].Source, "hot.c:") {
		t.Errorf("stack of user code: %+v", u)
	}
	if got["kprobes/none pre"] != nil || got["kprobes/k post"] != nil {
		t.Errorf("stacks nobody asked for: %+v", got)
	}
}

// TestMapStacks: stacks in a map are named as those of hits.
func TestMapStacks(t *testing.T) {
	h := serveFake(t, nil)
	sym, err := h.g.img.Lookup("vfs_read")
	if err != nil {
		t.Fatal(err)
	}
	value := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, uint64(sym.Addr)), 0x1234)
	got := newNamer(h.g).frames(addresses(append(value, make([]byte, 16)...)), true)
	if len(got) != 2 || got[0].Symbol != fmt.Sprintf("vfs_read+0x0/%#x", sym.Size) || !strings.HasPrefix(got[0].Source, "src/kernel/fs.c:") || got[1] != (api.Frame{Addr: 0x1234, User: true}) {
		t.Errorf("%+v", got)
	}
}
