package cli

import (
	"debug/elf"
	"fmt"
	"os"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/elfbuild"
	"github.com/guestprobe/guestprobe/probe/insn"
)

// mkprogMain is the program mkprog: it writes a program for a Linux guest. Its _start calls main,
// which for each n from 50 to 1 calls outer(n), which calls getpid and returns work(n), which is
// 2n. It exits with the last one's 2. All have frame pointers.
//
//	exec mkprog prog
func mkprogMain(args []string) int {
	const base, exit, getpid = guest.GVA(0x400078), 60, 39
	a := insn.NewAsm(uint64(base))
	main, outer, work := a.NewLabel(), a.NewLabel(), a.NewLabel()
	var symbols []elfbuild.Symbol
	function := func(name string, body func()) {
		at := a.Len()
		body()
		symbols = append(symbols, elfbuild.Symbol{Name: name, Addr: base + guest.GVA(at), Size: uint64(a.Len() - at), Type: elf.STT_FUNC})
	}
	framed := func(name string, label insn.Label, body func()) {
		function(name, func() {
			a.Place(label)
			a.Push(insn.RBP)
			a.Mov(8, insn.RBP, insn.RSP)
			body()
			a.Pop(insn.RBP)
			a.Ret()
		})
	}
	function("_start", func() {
		// A push that is the first to touch a page of the stack faults, and is hit once more.
		a.Mov(8, insn.At(insn.RSP, -guest.PageSize), insn.RSP)
		a.Xor(4, insn.RBP, insn.RBP)
		a.Call(main)
		a.Mov(8, insn.RDI, insn.RAX)
		a.Mov(8, insn.RAX, insn.Imm(exit))
		a.Syscall()
	})
	framed("main", main, func() {
		again := a.NewLabel()
		a.Mov(8, insn.RBX, insn.Imm(50))
		a.Place(again)
		a.Mov(8, insn.RDI, insn.RBX)
		a.Call(outer)
		a.Dec(8, insn.RBX)
		a.Jcc(insn.CondNE, again)
	})
	framed("outer", outer, func() {
		a.Mov(8, insn.RAX, insn.Imm(getpid))
		a.Syscall()
		a.Call(work)
	})
	framed("work", work, func() {
		a.Mov(8, insn.RAX, insn.RDI)
		a.Add(8, insn.RAX, insn.RDI)
	})
	code, err := a.Link()
	if err == nil && len(args) == 1 {
		f := elfbuild.File{
			Entry:    base,
			Segments: []elfbuild.Segment{{Section: ".text", VAddr: base, Flags: elf.PF_R | elf.PF_X, Data: code}},
			Symbols:  symbols,
		}
		err = os.WriteFile(args[0], f.Bytes(), 0o700)
	}
	if err != nil || len(args) != 1 {
		fmt.Fprintln(os.Stderr, "mkprog FILE:", err)
		return 1
	}
	return 0
}
