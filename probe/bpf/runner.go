package bpf

import "fmt"

// Runner is a place where compiled programs run one at a time: this CPU, or a
// vCPU of a guest.
type Runner interface {
	// Memory provides the working memory of compiled code.
	Memory
	// Reset frees all memory and all code.
	Reset()
	// Load puts code in place and returns a function that calls it once, with RDI,
	// RSI and RDX as for Compile. It returns RAX. The error says that the code did
	// not return, or which register it did not preserve.
	Load(code []byte) (func(ctx, block, length uint64) (uint64, error), error)
}

// Loaded is a compiled program in place, with a block and a context of its own.
type Loaded struct {
	Info  *Info
	Block Area
	ctx   Area
	call  func(ctx, block, length uint64) (uint64, error)
}

// LoadOn compiles a program and puts it in place on r, for contexts of up to
// maxCtx bytes.
func LoadOn(r Runner, p *Program, l Layout, c BlockConfig, maxCtx int) (*Loaded, error) {
	code, info, err := Compile(p, l)
	if err != nil {
		return nil, err
	}
	out := &Loaded{Info: info}
	if out.Block, err = r.Alloc(info.BlockSize); err != nil {
		return nil, fmt.Errorf("load program: run block: %w", err)
	}
	if out.ctx, err = r.Alloc(max(maxCtx, 8)); err != nil {
		return nil, fmt.Errorf("load program: context: %w", err)
	}
	if out.call, err = r.Load(code); err != nil {
		return nil, fmt.Errorf("load program: %w", err)
	}
	p.InitBlock(out.Block, c)
	return out, nil
}

// Run calls the code once on a context, which it may change, and returns R0. If the
// program was ended early the error is a *Fault.
func (l *Loaded) Run(ctx []byte) (uint64, error) {
	if len(ctx) > len(l.ctx.Bytes) {
		panic("BUG: context is longer than was said")
	}
	copy(l.ctx.Bytes, ctx)
	_, before, _, _ := BlockStats(l.Block)
	r0, err := l.call(l.ctx.Addr, l.Block.Addr, uint64(len(ctx)))
	if err != nil {
		return 0, err
	}
	copy(ctx, l.ctx.Bytes)
	if _, failed, _, last := BlockStats(l.Block); failed != before {
		return 0, &last
	}
	return r0, nil
}

// RunOn is the RunFunc of compiled code on r. As with NoEnv there is no guest
// memory to read.
func RunOn(r Runner) RunFunc {
	return func(p *Program, memory []byte) (uint64, error) {
		r.Reset()
		l, err := LoadOn(r, p, Layout{Fixups: true, NoGuest: true}, BlockConfig{}, len(memory))
		if err != nil {
			return 0, err
		}
		return l.Run(memory)
	}
}
