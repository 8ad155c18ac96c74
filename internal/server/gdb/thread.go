package gdb

import (
	"context"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"strings"
)

// all is the thread number -1: every vCPU. The number 0 is any of them; vCPU n
// is n+1.
const all = -1

// threadID parses a thread's number: the vCPU, or all. For 0 it returns the vCPU
// that any stands for.
func (s *session) threadID(b []byte, any int) (int, error) {
	if string(b) == "-1" {
		return all, nil
	}
	n, ok := number(b)
	if !ok {
		return 0, errBad
	}
	if n > uint64(s.t.CPUs()) {
		return 0, fmt.Errorf("there is no thread %d", n)
	}
	if n == 0 {
		return any, nil
	}
	return int(n) - 1, nil
}

// choose sets which vCPU later packets refer to.
func (s *session) choose(_ context.Context, b []byte) (string, error) {
	if len(b) == 0 {
		return "", errBad
	}
	id, err := s.threadID(b[1:], s.cpu)
	switch {
	case err != nil:
		return "", err
	case b[0] == 'c':
		s.run = id
	case b[0] == 'g' && id != all:
		s.cpu = id
	case b[0] != 'g':
		return "", nil
	}
	return "OK", nil
}

func (s *session) answerAlive(_ context.Context, b []byte) (string, error) {
	if _, err := s.threadID(b, 0); err != nil {
		return "", err
	}
	return "OK", nil
}

func (s *session) threadList(context.Context, []byte) (string, error) {
	ids := make([]string, s.t.CPUs())
	for i := range ids {
		ids[i] = fmt.Sprintf("%x", i+1)
	}
	return "m" + strings.Join(ids, ","), nil
}

// threadStop reports why a vCPU is stopped: the vCPU of the reported stop, or
// another one that has since reached a breakpoint of its own. LLDB asks for it.
// GDB learns of the others when it resumes the guest.
func (s *session) threadStop(_ context.Context, b []byte) (string, error) {
	cpu, err := s.threadID(b, s.cpu)
	if err != nil {
		return "", err
	}
	if cpu == all {
		return "", errBad
	}
	if cpu == s.last.CPU {
		return s.haltReason()
	}
	stop, told := s.also[cpu]
	if !told {
		if stop, told = s.t.StopOf(cpu); told {
			s.also[cpu] = stop
		}
	}
	if told {
		return s.stopReply(stop)
	}
	return s.stopReply(Stop{Why: alongside, CPU: cpu})
}

func (s *session) threadInfo(_ context.Context, b []byte) (string, error) {
	id, err := s.threadID(b, s.cpu)
	if err == nil && id == all {
		err = errBad
	}
	if err != nil {
		return "", err
	}
	return hex.EncodeToString([]byte(s.t.Describe(id))), nil
}

// threadTable returns all vCPUs at once, in their state when its beginning is
// read.
func (s *session) threadTable(_ context.Context, b []byte) (string, error) {
	if s.threads == "" || strings.HasPrefix(string(b), "0,") {
		var t strings.Builder
		t.WriteString("<threads>")
		for i := range s.t.CPUs() {
			fmt.Fprintf(&t, `<thread id="%x" core="%d" name="vCPU %d">`, i+1, i, i)
			if err := xml.EscapeText(&t, []byte(s.t.Describe(i))); err != nil {
				return "", err
			}
			t.WriteString("</thread>")
		}
		t.WriteString("</threads>")
		s.threads = t.String()
	}
	return slice(s.threads, b)
}
