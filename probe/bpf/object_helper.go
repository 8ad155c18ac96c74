package bpf

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

// linkedHelpers are helpers of Linux whose calls become a few instructions, by the data
// about the guest's kernel. They read the kernel's memory by address.
var linkedHelpers = map[Helper]func(*ObjectProgram, *Kernel) (asm.Instructions, error){
	helperJiffies:    (*ObjectProgram).jiffies,
	helperTaskPtRegs: (*ObjectProgram).taskPtRegs,
	helperSockCookie: (*ObjectProgram).sockCookie,
	helperBranches:   (*ObjectProgram).branches,
}

// Their numbers.
const (
	helperJiffies    Helper = 118
	helperTaskPtRegs Helper = 175
	helperSockCookie Helper = 46
	helperBranches   Helper = 176
)

// linkedWarnings are differences from Linux that a user must know, by the helper.
var linkedWarnings = map[Helper]string{
	helperSockCookie: "get_socket_cookie is 0 for a socket that the guest's kernel has not numbered yet, where Linux would number it",
	helperBranches:   "get_branch_snapshot always returns -ENOENT: the processor's records of branches are not read",
}

// linkedKey is the key, in the metadata of the first instruction in place of a call, for
// its warning.
type linkedKey struct{}

// linkHelper returns the instructions that take the place of the call ins.
func (p *ObjectProgram) linkHelper(ins *asm.Instruction, k *Kernel) (asm.Instructions, error) {
	h := Helper(ins.Constant)
	if k == nil && h != helperBranches {
		return nil, errors.New("it reads the memory of a Linux kernel, and the guest has none that is known")
	}
	if w := linkedWarnings[h]; w != "" {
		ins.Metadata.Set(linkedKey{}, w)
	}
	body, err := linkedHelpers[h](p, k)
	p.follows = p.follows || h != helperBranches
	return body, err
}

// warnLinked returns the warnings of the helpers whose calls became instructions.
func (p *Program) warnLinked() (out []Warning) {
	told := map[string]bool{}
	for pc, i := range p.slots {
		if i == nil || p.ops[pc].code == opMissing {
			continue
		}
		if w, _ := i.Metadata.Get(linkedKey{}).(string); w != "" && !told[w] {
			told[w] = true
			out = append(out, Warning{Index: pc, Text: textOf(i), What: w, Source: p.sourceOf(pc)})
		}
	}
	return out
}

// sockCookie is get_socket_cookie (socket), of a program that has the socket by its type:
// bpf_get_socket_ptr_cookie. Asking for the number of a socket that has none would change
// the guest.
func (p *ObjectProgram) sockCookie(k *Kernel) (asm.Instructions, error) {
	if inUserCode(p.Section) {
		return nil, errors.New("user code cannot read the kernel's memory")
	}
	common, err := k.member("sock", "__sk_common")
	if err != nil {
		return nil, err
	}
	cookie, err := k.member("sock_common", "skc_cookie")
	if err != nil {
		return nil, err
	}
	return asm.Instructions{
		asm.Mov.Imm(asm.R0, 0),
		jumpOver(asm.JEq, asm.R1, 0, 1),
		asm.LoadMem(asm.R0, asm.R1, int16(common+cookie), asm.DWord),
	}, nil
}

// branches is get_branch_snapshot (records, size, flags), as in a kernel on a processor
// without such records.
func (p *ObjectProgram) branches(*Kernel) (asm.Instructions, error) {
	return asm.Instructions{
		asm.Mov.Imm(asm.R0, -errInval),
		jumpOver(asm.JNE, asm.R3, 0, 1),
		asm.Mov.Imm(asm.R0, -errNoEnt),
	}, nil
}

// jiffies is jiffies64.
func (p *ObjectProgram) jiffies(k *Kernel) (asm.Instructions, error) {
	if inUserCode(p.Section) {
		return nil, errors.New("user code cannot read the kernel's memory")
	}
	addr, ok := k.symbol("jiffies_64")
	if !ok {
		if addr, ok = k.symbol("jiffies"); !ok {
			return nil, errors.New("the guest's kernel has no symbol jiffies")
		}
	}
	return asm.Instructions{asm.LoadImm(asm.R0, int64(addr), asm.DWord), asm.LoadMem(asm.R0, asm.R0, 0, asm.DWord)}, nil
}

// taskPtRegs is task_pt_regs (task): the registers that the task entered the kernel
// with are at the end of its stack (task_pt_regs, arch/x86/include/asm/processor.h).
func (p *ObjectProgram) taskPtRegs(k *Kernel) (asm.Instructions, error) {
	stack, err := k.member("task_struct", "stack")
	if err != nil {
		return nil, err
	}
	size, err := k.stackSize()
	if err != nil {
		return nil, err
	}
	size -= RegsSize
	if _, fred := k.symbol("asm_fred_entrypoint_user"); fred {
		size -= 16 // TOP_OF_KERNEL_STACK_PADDING
	}
	return asm.Instructions{
		asm.LoadMem(asm.R0, asm.R1, int16(stack), asm.DWord),
		jumpOver(asm.JEq, asm.R0, 0, 1),
		asm.Add.Imm(asm.R0, int32(size)),
	}, nil
}

// symbol returns the address of a symbol of the kernel.
func (k *Kernel) symbol(name string) (uint64, bool) {
	if k.Symbol == nil {
		return 0, false
	}
	return k.Symbol(name)
}

// stackSize returns the size of the stacks of a kernel's tasks (THREAD_SIZE), as its
// first task has it.
func (k *Kernel) stackSize() (uint64, error) {
	for _, name := range []string{"init_stack", "init_task"} { // the second one until Linux 6.9
		from, ok := k.symbol("__start_" + name)
		to, ok2 := k.symbol("__end_" + name)
		if size := to - from; ok && ok2 && size >= 1<<13 && size <= 1<<17 && size&(size-1) == 0 {
			return size, nil
		}
	}
	return 0, errors.New("the symbols of the guest's kernel do not say how large its stacks are (__start_init_stack, __end_init_stack)")
}

// member returns the offset of a member of a structure of the kernel.
func (k *Kernel) member(structure, name string) (uint32, error) {
	for _, spec := range k.Types {
		var s *btf.Struct
		if spec.TypeByName(structure, &s) != nil {
			continue
		}
		for _, m := range s.Members {
			if m.Name == name && m.Offset%8 == 0 && m.Offset/8 < 1<<15 {
				return uint32(m.Offset / 8), nil
			}
		}
	}
	return 0, fmt.Errorf("the types (BTF) of the guest's kernel have no %s in struct %s", name, structure)
}

// refusedHelpers are helpers of Linux that have no right answer outside of the guest's
// kernel, with the reason.
var refusedHelpers = map[Helper]string{
	22:  "the counter is in the guest's kernel",
	42:  "the guest's kernel knows its nodes of memory",
	47:  "the kernel numbers a user's sockets by its network namespaces",
	55:  "the counter is in the guest's kernel",
	107: "the storage is part of a socket of the guest's kernel",
	108: "the storage is part of a socket of the guest's kernel",
	109: "only the guest's kernel can send a signal",
	117: "only the guest's kernel can send a signal",
	123: "only the guest's kernel knows the ancestors of a cgroup",
	141: "stacks of other tasks than the current one are not walked: use get_stack",
	145: "the storage is part of an inode of the guest's kernel",
	146: "the storage is part of an inode of the guest's kernel",
	147: "the guest's kernel holds locks while it follows mounts",
	153: "variables of each CPU cannot be reached",
	154: "variables of each CPU cannot be reached",
	169: "a timer's function would run when no probe is hit",
	170: "a timer's function would run when no probe is hit",
	171: "a timer's function would run when no probe is hit",
	172: "a timer's function would run when no probe is hit",
	191: "the memory of other processes than the current one is not read",
	194: "the kernel's objects cannot be owned from outside of it",
	208: "the offset of TAI is in the guest's kernel",
	209: "the ring is one that a process of the guest fills",
	210: "the storage is part of a cgroup of the guest's kernel",
	211: "the storage is part of a cgroup of the guest's kernel",
}
