package bpf

import (
	"encoding/hex"
	"fmt"
	"strings"
)

// parseHex reads bytes in hexadecimal with any white space between them, as
// conformance runners pass programs and memory.
func parseHex(s string) ([]byte, error) {
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil {
		return nil, fmt.Errorf("parse bytes in hex: %w", err)
	}
	return b, nil
}

// RunFunc runs a raw program once on memory, which it may change, and returns
// R0. R1 points to the memory and R2 is its length.
type RunFunc func(p *Program, memory []byte) (uint64, error)

// Interpret is the RunFunc of the host's interpreter.
func Interpret(p *Program, memory []byte) (uint64, error) {
	r0, err := NewVM(p, 0).Run(memory, NoEnv{})
	return r0, err
}

// Exec runs a program the way a plug-in of the bpf_conformance suite does:
// program and memory are bytes in hexadecimal, the result is R0 in hexadecimal
// without a prefix. Errors say whether parsing, checking or running failed.
func Exec(program, memory string, run RunFunc) (string, error) {
	code, err := parseHex(program)
	if err != nil {
		return "", fmt.Errorf("program: %w", err)
	}
	mem, err := parseHex(memory)
	if err != nil {
		return "", fmt.Errorf("memory: %w", err)
	}
	insns, err := Decode(code)
	if err != nil {
		return "", err
	}
	p, err := New(Spec{Kind: Raw, Insns: insns})
	if err != nil {
		return "", err
	}
	space := alignedBytes(len(mem))
	copy(space, mem)
	r0, err := run(p, space)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%x", r0), nil
}
