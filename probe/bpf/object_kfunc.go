package bpf

import (
	"fmt"
	"math"
	"slices"

	"github.com/cilium/ebpf/asm"
)

// kfunc is a function of Linux's kernel that programs can call here: the call becomes a
// few instructions, or the call of a helper. Instructions use only R0 to R5, whose
// values a call does not preserve, and so need no frame of their own.
type kfunc struct {
	body    asm.Instructions // jumps count slots, and may lead to the end
	helper  Helper           // 0: body
	follows bool             // the program may then read kernel memory by address
	kinds   []Kind           // of programs that may call it; nil: all
}

// maxIterations bounds the numbers of one iterator (BPF_MAX_LOOPS).
const maxIterations = maxLoops

var (
	nothing = asm.Instructions{asm.Mov.Imm(asm.R0, 0)}
	itself  = asm.Instructions{asm.Mov.Reg(asm.R0, asm.R1)}
)

// kfuncs are the functions by name. A number iterator (struct bpf_iter_num) is two
// numbers of 32 bits: the one that was returned last, whose address is the iterator's,
// and the end.
var kfuncs = map[string]*kfunc{
	"bpf_iter_num_new": {body: asm.Instructions{
		asm.MovSX32.Reg(asm.R2, asm.R2), asm.MovSX32.Reg(asm.R3, asm.R3),
		clearWord(asm.R1),
		asm.Mov.Imm(asm.R0, -errInval),
		jumpTo(asm.JSGT, asm.R2, asm.R3, 9),
		asm.Mov.Imm(asm.R0, -errTooBig),
		asm.Mov.Reg(asm.R4, asm.R3), asm.Sub.Reg(asm.R4, asm.R2),
		jumpOver(asm.JSGT, asm.R4, maxIterations, 5),
		asm.Mov.Imm(asm.R0, 0),
		asm.Add.Imm(asm.R2, -1),
		asm.StoreMem(asm.R1, 0, asm.R2, asm.Word),
		asm.StoreMem(asm.R1, 4, asm.R3, asm.Word),
		asm.Mov.Imm(asm.R0, 0),
	}},
	"bpf_iter_num_next": {body: asm.Instructions{
		asm.LoadMem(asm.R2, asm.R1, 0, asm.Word), asm.LoadMem(asm.R3, asm.R1, 4, asm.Word),
		asm.Add.Imm32(asm.R2, 1),
		jump32(asm.JSGE, asm.R2, asm.R3, 3),
		asm.StoreMem(asm.R1, 0, asm.R2, asm.Word),
		asm.Mov.Reg(asm.R0, asm.R1),
		jumpAhead(2),
		clearWord(asm.R1),
		asm.Mov.Imm(asm.R0, 0),
	}},
	"bpf_iter_num_destroy": {body: asm.Instructions{clearWord(asm.R1), asm.Mov.Imm(asm.R0, 0)}},

	// A program is not preempted by the guest, and keeps no object of the kernel.
	"bpf_rcu_read_lock": {body: nothing}, "bpf_rcu_read_unlock": {body: nothing},
	"bpf_preempt_disable": {body: nothing}, "bpf_preempt_enable": {body: nothing},
	"bpf_task_acquire": {body: itself, follows: true}, "bpf_task_release": {body: nothing},
	"bpf_cgroup_acquire": {body: itself, follows: true}, "bpf_cgroup_release": {body: nothing},

	"bpf_dynptr_slice": {helper: HelperDynptrSlice}, "bpf_dynptr_slice_rdwr": {helper: HelperDynptrSliceW},
	"bpf_dynptr_adjust": {helper: HelperDynptrAdjust}, "bpf_dynptr_size": {helper: HelperDynptrSize}, "bpf_dynptr_clone": {helper: HelperDynptrClone},
	"bpf_dynptr_is_null": {helper: HelperDynptrIsNull}, "bpf_dynptr_is_rdonly": {helper: HelperDynptrIsRO},

	"bpf_rdonly_cast":      {body: itself, follows: true},
	"bpf_cast_to_kern_ctx": {body: itself, kinds: []Kind{Kprobe, Kretprobe}},
}

// clearWord stores 0 in the 8 bytes that a register points to.
func clearWord(r asm.Register) asm.Instruction {
	return asm.Instruction{OpCode: asm.StoreImmOp(asm.DWord), Dst: r}
}

func jumpTo(op asm.JumpOp, a, b asm.Register, over int16) asm.Instruction {
	i := op.Reg(a, b, "")
	i.Offset = over
	return i.WithReference("")
}

func jump32(op asm.JumpOp, a, b asm.Register, over int16) asm.Instruction {
	i := op.Reg32(a, b, "")
	i.Offset = over
	return i.WithReference("")
}

func jumpOver(op asm.JumpOp, a asm.Register, value int32, over int16) asm.Instruction {
	i := op.Imm(a, value, "")
	i.Offset = over
	return i.WithReference("")
}

func jumpAhead(over int16) asm.Instruction {
	return asm.Instruction{OpCode: asm.OpCode(asm.JumpClass).SetJumpOp(asm.Ja), Offset: over}
}

// linkKfunc links a reference of a program to a kfunc. It returns the instructions that
// take the place of the call, nil if it keeps its one slot.
func (p *ObjectProgram) linkKfunc(ins *asm.Instruction, name string) (asm.Instructions, error) {
	k := kfuncs[name]
	*ins = ins.WithReference("")
	switch {
	case ins.OpCode.IsDWordLoad(): // checks its existence
		ins.Src, ins.Constant = 0, 1
		return nil, nil
	case !ins.IsFunctionCall():
		return nil, fmt.Errorf("%q is not used as a function", name)
	case k.kinds != nil && !slices.Contains(k.kinds, p.Kind):
		return nil, fmt.Errorf("it calls %s, which is supported in kprobe/ and kretprobe/ only", name)
	}
	p.follows = p.follows || k.follows
	if k.helper != 0 {
		call := asm.BuiltinFunc(k.helper).Call()
		call.Metadata = ins.Metadata
		*ins = call
		return nil, nil
	}
	return k.body, nil
}

// expand replaces instructions of one slot by others, by index, and corrects the jumps
// over them.
func expand(in asm.Instructions, bodies map[int]asm.Instructions) (asm.Instructions, error) {
	if len(bodies) == 0 {
		return in, nil
	}
	var out asm.Instructions
	moved := map[int]int{} // slots
	from, to := 0, 0
	var old []int // slot of each instruction of out; -1: it is from a body
	for i := range in {
		moved[from] = to
		from += int(in[i].Width())
		body, ok := bodies[i]
		if !ok {
			out, old = append(out, in[i]), append(old, from-int(in[i].Width()))
			to += int(in[i].Width())
			continue
		}
		for n, ins := range body {
			if n == 0 {
				ins.Metadata = in[i].Metadata // its source, and the names of functions
			}
			out, old = append(out, ins), append(old, -1)
			to += int(ins.Width())
		}
	}
	moved[from] = to
	slot := 0
	for n := range out {
		ins, was, at := &out[n], old[n], slot
		slot += int(ins.Width())
		if was < 0 || !isJump(ins) || ins.Reference() != "" {
			continue
		}
		t, ok := moved[target(ins, was)]
		if !ok {
			continue // the checker reports it
		}
		over := t - at - 1
		switch {
		case isLongJump(ins):
			ins.Constant = int64(over)
		case over < math.MinInt16 || over > math.MaxInt16:
			return nil, fmt.Errorf("instruction %d jumps too far, after functions of the kernel were linked in: compile with -mcpu=v4", was)
		default:
			ins.Offset = int16(over)
		}
	}
	return out, nil
}
