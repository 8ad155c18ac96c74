package cli

import (
	"debug/elf"
	"fmt"
	"os"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/elfbuild"
	"github.com/guestprobe/guestprobe/guest/x86"
)

// mkprogMain is the program mkprog, which writes a program for a Linux guest. Its _start calls main,
// which calls outer(n) for n from 50 down to 1. outer calls getpid and returns work(n), which returns
// 2n. The program exits with the last result, 2. All functions have frame pointers.
//
//	exec mkprog prog
func mkprogMain(args []string) int {
	const base, exit, getpid = guest.GVA(0x400078), 60, 39
	a := x86.NewAsm(uint64(base))
	main, outer, work := a.NewLabel(), a.NewLabel(), a.NewLabel()
	var symbols []elfbuild.Symbol
	function := func(name string, body func()) {
		at := a.Len()
		body()
		symbols = append(symbols, elfbuild.Symbol{Name: name, Addr: base + guest.GVA(at), Size: uint64(a.Len() - at), Type: elf.STT_FUNC})
	}
	framed := func(name string, label x86.Label, body func()) {
		function(name, func() {
			a.Place(label)
			a.Push(x86.RBP)
			a.Mov(8, x86.RBP, x86.RSP)
			body()
			a.Pop(x86.RBP)
			a.Ret()
		})
	}
	function("_start", func() {
		// Touch the next page of the stack: a push that faults there would be hit twice.
		a.Mov(8, x86.At(x86.RSP, -guest.PageSize), x86.RSP)
		a.Xor(4, x86.RBP, x86.RBP)
		a.Call(main)
		a.Mov(8, x86.RDI, x86.RAX)
		a.Mov(8, x86.RAX, x86.Imm(exit))
		a.Syscall()
	})
	framed("main", main, func() {
		again := a.NewLabel()
		a.Mov(8, x86.RBX, x86.Imm(50))
		a.Place(again)
		a.Mov(8, x86.RDI, x86.RBX)
		a.Call(outer)
		a.Dec(8, x86.RBX)
		a.Jcc(x86.CondNE, again)
	})
	framed("outer", outer, func() {
		a.Mov(8, x86.RAX, x86.Imm(getpid))
		a.Syscall()
		a.Call(work)
	})
	framed("work", work, func() {
		a.Mov(8, x86.RAX, x86.RDI)
		a.Add(8, x86.RAX, x86.RDI)
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
