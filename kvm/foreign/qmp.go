package foreign

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/kvm"
)

// Tests change these.
var (
	// qmpTime bounds how long a QEMU may take for one answer.
	qmpTime = 10 * time.Second

	// silentTime is qmpTime for a QEMU that has not given the last answer.
	silentTime = 300 * time.Millisecond
)

const (
	// greetTime bounds how long a QEMU may take to greet a client.
	greetTime = 2 * time.Second

	// waiting is how many answers wait to be read.
	waiting = 64

	// openTime bounds how long opening a guest may take.
	openTime = 20 * time.Second

	// maxAnswer bounds the bytes of one answer.
	maxAnswer = 16 << 20

	// maxBackends and maxRanges bound the pieces of a guest's memory.
	maxBackends = 64
	maxRanges   = 4096
)

// qmp reaches the guest of a QEMU by its QMP socket. The guest's RAM is in
// files.
type qmp struct {
	turn    chan struct{} // holds a value for a command and its answer, and while vCPUs are stopped
	conn    *net.UnixConn
	answers chan qmpAnswer // closed when the connection ends
	until   time.Time      // not zero: it is being opened, until then
	seq     uint64         // the number of the last command
	silent  bool           // it has not answered that in time
	cont    atomic.Uint64  // the number of the command that resumes the guest, from before stop until QEMU answers it; 0: none
	guard   *guard
	pid     int

	files map[string]*os.File // by memory backend
	mem   copied
	ram   []guest.Region
	cpus  int
}

// otherClient is why a QEMU does not greet.
const otherClient = "another client has it (QEMU serves one: give it a second socket with another -qmp)"

// qmpAnswer is a line from a QEMU, other than an event.
type qmpAnswer struct {
	ID     json.RawMessage `json:"id"` // of the command
	Return json.RawMessage `json:"return"`
	Error  *struct {
		Desc string `json:"desc"`
	} `json:"error"`
	Event string `json:"event"`

	wrong error // the line is no JSON
}

// read reads answers until the connection ends. Answers that no command waits for any more are dropped at last.
func (q *qmp) read(in *bufio.Scanner) {
	defer close(q.answers)
	in.Buffer(nil, maxAnswer)
	for in.Scan() {
		var m qmpAnswer
		if err := json.Unmarshal(in.Bytes(), &m); err != nil {
			m = qmpAnswer{wrong: err}
		}
		if m.Event != "" {
			continue
		}
		if n := q.cont.Load(); n != 0 && string(m.ID) == strconv.FormatUint(n, 10) {
			// Also if no command waits for it any more: the guard must not resume a guest that its user pauses later.
			_ = q.guard.set(false)
			q.cont.CompareAndSwap(n, 0)
		}
		select {
		case q.answers <- m:
		default: // a QEMU that answers more than it was asked
			return
		}
	}
}

// openQMP connects to a QEMU, the process pid. Errors name the missing part.
func openQMP(pid int, path string) (_ *qmp, err error) {
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	switch {
	case refused(err):
		return nil, fail(CodeNoPermission, err, "QMP socket %s", path)
	case errors.Is(err, unix.EAGAIN): // its queue of connections is full
		return nil, fail(CodeBusy, err, "QMP socket %s: %s", path, otherClient)
	case err != nil:
		return nil, fail(CodeBusy, err, "QMP socket %s", path)
	}
	q := &qmp{turn: make(chan struct{}, 1), conn: conn, answers: make(chan qmpAnswer, waiting), files: map[string]*os.File{}, until: time.Now().Add(openTime), pid: pid}
	go q.read(bufio.NewScanner(conn))
	defer func() {
		if err != nil {
			q.close()
		}
	}()
	switch by, err := peer(conn); {
	case err != nil:
		return nil, fail(CodeHostLayout, err, "QMP socket %s", path)
	case by != pid:
		return nil, fail(CodeNoVM, nil, "QMP socket %s is served by process %d, not by %d", path, by, pid)
	}
	// QEMU serves one client at a time, and greets the next when it has gone.
	select {
	case _, ok := <-q.answers:
		if !ok {
			return nil, fail(CodeGone, nil, "QMP socket %s: the connection ended", path)
		}
	case <-time.After(greetTime):
		return nil, fail(CodeBusy, nil, "QMP socket %s: %s", path, otherClient)
	}
	if err := q.execute("qmp_capabilities", nil, nil); err != nil {
		return nil, err
	}
	var cpus []struct{}
	if err := q.execute("query-cpus-fast", nil, &cpus); err != nil {
		return nil, err
	}
	q.cpus = len(cpus)
	if err := q.findRAM(); err != nil {
		return nil, err
	}
	if q.guard, err = startGuard(conn); err != nil {
		return nil, fail(CodeHostLayout, err, "start the process that resumes a paused guest")
	}
	q.until = time.Time{}
	return q, nil
}

// peer returns the process at the other end of a connection: the one that listens.
func peer(conn *net.UnixConn) (pid int, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	var inner error
	err = raw.Control(func(fd uintptr) { cred, inner = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err = errors.Join(err, inner); err != nil {
		return 0, err
	}
	return int(cred.Pid), nil
}

func (q *qmp) regions() []guest.Region { return q.ram }
func (q *qmp) vcpus() int              { return q.cpus }

func (q *qmp) close() error {
	errs := []error{q.conn.Close()}
	for range q.answers { // until nothing reads any more
	}
	if q.guard != nil {
		errs = append(errs, q.guard.close())
		q.guard = nil
	}
	for _, f := range q.files {
		errs = append(errs, f.Close())
	}
	clear(q.files)
	errs = append(errs, q.mem.close())
	return errors.Join(errs...)
}

// execute runs a command. Precondition: turn held, or no other goroutine knows q.
func (q *qmp) execute(command string, arguments, out any) error {
	if q.silent && command != resumes {
		// Nothing more is sent to a QEMU that has not answered, so that few answers come when it continues.
		if err := q.awaitAnswer(command, strconv.FormatUint(q.seq, 10), time.Now().Add(silentTime), nil); CodeOf(err) == CodeBusy || CodeOf(err) == CodeGone {
			return err
		}
	}
	q.seq++
	if command == resumes {
		q.cont.Store(q.seq)
	}
	id := strconv.FormatUint(q.seq, 10)
	line, err := json.Marshal(struct {
		Execute   string          `json:"execute"`
		Arguments any             `json:"arguments,omitempty"`
		ID        json.RawMessage `json:"id"`
	}{command, arguments, json.RawMessage(id)})
	if err != nil {
		return err
	}
	limit := qmpTime
	if q.silent {
		limit = silentTime
	}
	deadline := time.Now().Add(limit)
	if !q.until.IsZero() && q.until.Before(deadline) {
		deadline = q.until
	}
	_ = q.conn.SetWriteDeadline(deadline)
	if _, err := q.conn.Write(append(line, '\n')); err != nil {
		return fail(CodeGone, err, "QMP: %s", command)
	}
	return q.awaitAnswer(command, id, deadline, out)
}

// resumes is the command that resumes a guest.
const resumes = "cont"

// awaitAnswer waits for the answer to the command of that number.
func (q *qmp) awaitAnswer(command, id string, deadline time.Time, out any) error {
	late := time.NewTimer(time.Until(deadline))
	defer late.Stop()
	for {
		var m qmpAnswer
		var ok bool
		select {
		case m, ok = <-q.answers:
		case <-late.C:
			q.silent = true
			return fail(CodeBusy, nil, "QMP: %s: QEMU (process %d) has not answered in time: it is stopped, or has no processor", command, q.pid)
		}
		switch {
		case !ok:
			return fail(CodeGone, nil, "QMP: %s: the connection ended", command)
		case m.wrong != nil:
			return fail(CodeHostLayout, m.wrong, "QMP: %s", command)
		case m.ID != nil && string(m.ID) != id:
			continue // the answer to a command that has been given up
		}
		q.silent = false
		switch {
		case m.Error != nil:
			return fail(CodeHostLayout, nil, "QMP: %s: %s", command, m.Error.Desc)
		case out == nil:
			return nil
		}
		if err := json.Unmarshal(m.Return, out); err != nil {
			return fail(CodeHostLayout, err, "QMP: %s", command)
		}
		return nil
	}
}

// monitor runs a command of the human monitor, whose answers are text.
func (q *qmp) monitor(line string) (out string, err error) {
	err = q.execute("human-monitor-command", map[string]string{"command-line": line}, &out)
	return out, err
}

// findRAM opens the files that the guest's RAM is in, and finds where the guest
// has them.
func (q *qmp) findRAM() error {
	var devices []struct {
		ID    string `json:"id"`
		Size  uint64 `json:"size"`
		Share bool   `json:"share"`
	}
	if err := q.execute("query-memdev", nil, &devices); err != nil {
		return err
	}
	sizes := map[string]uint64{}
	why := "it has no memory backend of its own"
	for _, d := range devices {
		var path string
		if len(q.files) == maxBackends {
			return fail(CodeHostLayout, nil, "it has more than %d memory backends", maxBackends)
		}
		if d.ID == "" || q.execute("qom-get", map[string]string{"path": "/objects/" + d.ID, "property": "mem-path"}, &path) != nil {
			why = "its memory backend is no file"
			continue
		}
		if !d.Share {
			why = fmt.Sprintf("its memory backend %s is not shared (share=on)", d.ID)
			continue
		}
		f, err := q.openRAM(path, d.Size)
		if err != nil {
			return fail(CodeNoPermission, err, "RAM of the guest")
		}
		q.files[d.ID], sizes[d.ID] = f, d.Size
	}
	if len(sizes) == 0 {
		return fail(CodeHostLayout, nil, "%s: start QEMU with '-object memory-backend-file,id=ram,mem-path=FILE,size=SIZE,share=on -machine memory-backend=ram'", why)
	}
	tree, err := q.monitor("info mtree -f")
	if err != nil {
		return err
	}
	ranges := flatRanges(tree)
	if len(ranges) > maxRanges {
		return fail(CodeHostLayout, nil, "its memory has %d pieces, more than %d", len(ranges), maxRanges)
	}
	for _, r := range ranges {
		f, has := q.files[r.name], sizes[r.name]
		if f == nil || r.end < r.start || r.offset > has || r.end-r.start >= has-r.offset {
			continue // a device's, or one that is not in a file
		}
		size := (r.end - r.start + 1) &^ (guest.PageSize - 1)
		if size == 0 || r.start%guest.PageSize != 0 {
			continue
		}
		region, err := q.mem.add(guest.GPA(r.start), size, r.name, func(p []byte, off uint64) (int, error) {
			return f.ReadAt(p, int64(r.offset+off))
		})
		if err != nil {
			return fail(CodeHostLayout, err, "address space for a copy of %d bytes", size)
		}
		q.ram = append(q.ram, region)
	}
	if len(q.ram) == 0 {
		return fail(CodeHostLayout, nil, "QEMU's memory map ('info mtree -f') has none of its memory backends")
	}
	return nil
}

// openRAM opens a file that has size bytes of RAM. The path is QEMU's. A file that
// is not regular is not opened, because that alone can do something; and if this
// process may read which files QEMU has mapped, it must be one of these.
func (q *qmp) openRAM(path string, size uint64) (*os.File, error) {
	proc := fmt.Sprintf("/proc/%d", q.pid)
	if !filepath.IsAbs(path) {
		cwd, err := os.Readlink(proc + "/cwd")
		if err != nil {
			return nil, fmt.Errorf("the file %s is relative to QEMU's working directory: %w", path, err)
		}
		path = filepath.Join(cwd, path)
	}
	if _, err := os.Stat(proc + "/root/."); err == nil {
		path = proc + "/root" + path // it may have another root directory
	}
	at, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(at)
	var st unix.Stat_t
	if err := unix.Fstat(at, &st); err != nil {
		return nil, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return nil, fmt.Errorf("%s is not a regular file", path)
	case st.Size < 0 || uint64(st.Size) < size || size == 0 || size > 1<<46:
		return nil, fmt.Errorf("%s has %d bytes, the memory backend %d", path, st.Size, size)
	}
	if maps, err := os.ReadFile(proc + "/maps"); err == nil && !mapsFile(string(maps), &st) {
		return nil, fmt.Errorf("%s is not the file that QEMU has mapped: it has been replaced", path)
	}
	return os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", at), os.O_RDONLY, 0)
}

// mapsFile reports whether a process with these maps (proc_pid_maps(5)) has a file
// mapped.
func mapsFile(maps string, st *unix.Stat_t) bool {
	want := fmt.Sprintf("%02x:%02x %d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
	for line := range strings.Lines(maps) {
		// address perms offset dev inode path
		if f := strings.Fields(line); len(f) >= 5 && f[3]+" "+f[4] == want {
			return true
		}
	}
	return false
}

// flatRange is a range of guest memory in QEMU's memory map.
type flatRange struct {
	start, end uint64 // the last byte
	name       string
	offset     uint64 // in the memory of that name
}

// flatRanges returns the RAM of the address space "memory" from the text of 'info
// mtree -f':
//
//	FlatView #1
//	 AS "memory", root: system
//	 AS "cpu-memory-0", root: system
//	 Root memory region: system
//	  0000000000000000-000000000009ffff (prio 0, ram): ram KVM
//	  00000000000c0000-00000000000dffff (prio 1, ram): ram @00000000000c0000 KVM
func flatRanges(text string) (all []flatRange) {
	for view := range strings.SplitSeq(text, "FlatView #") {
		if !strings.Contains(view, `AS "memory"`) {
			continue
		}
		for line := range strings.Lines(view) {
			line = strings.TrimSpace(line)
			at, rest, ok := strings.Cut(line, " ")
			from, to, two := strings.Cut(at, "-")
			if !ok || !two {
				continue
			}
			start, err1 := strconv.ParseUint(from, 16, 64)
			end, err2 := strconv.ParseUint(to, 16, 64)
			kind, rest, ok := strings.Cut(rest, "): ")
			words := strings.Fields(rest)
			if err1 != nil || err2 != nil || !ok || len(words) == 0 || !strings.HasSuffix(kind, "ram") && !strings.HasSuffix(kind, "rom") {
				continue
			}
			r := flatRange{start: start, end: end, name: words[0]}
			if len(words) > 1 && strings.HasPrefix(words[1], "@") {
				if r.offset, err1 = strconv.ParseUint(words[1][1:], 16, 64); err1 != nil {
					continue
				}
			}
			all = append(all, r)
		}
		return all
	}
	return nil
}

// stop implements backend. A guest that its user has paused stays paused.
func (q *qmp) stop(ctx context.Context, _ time.Duration, f func([]CPU) error) (err error) {
	select {
	case q.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(qmpTime):
		return fail(CodeBusy, nil, "QMP: QEMU (process %d) has not answered an earlier request", q.pid)
	}
	defer func() { <-q.turn }()
	var status struct {
		Running bool `json:"running"`
	}
	if err := q.execute("query-status", nil, &status); err != nil {
		return err
	}
	// QEMU answers in order: an earlier command that resumes the guest has been answered by now.
	if status.Running {
		if err := q.guard.set(true); err != nil {
			return fail(CodeHostLayout, err, "the process that resumes a paused guest")
		}
		// Also if stop is not answered in time: QEMU may still carry it out, and then this, which follows it. The guard
		// stays ready until that is answered.
		defer func() { err = errors.Join(err, q.execute(resumes, nil, nil)) }()
		if err := q.execute("stop", nil, nil); err != nil {
			return err
		}
	}
	text, err := q.monitor("info registers -a")
	if err != nil {
		return err
	}
	cpus, err := parseRegisters(text)
	if err != nil {
		return fail(CodeHostLayout, err, "QEMU's registers ('info registers -a')")
	}
	q.mem.drop()
	if len(cpus) != q.cpus {
		return fail(CodeHostLayout, nil, "QEMU has %d vCPUs, and shows the registers of %d", q.cpus, len(cpus))
	}
	return f(cpus)
}

// registerName matches a register and its words, which a name or a line's end
// follows.
var registerName = regexp.MustCompile(`\b([A-Z][A-Z0-9]{1,4}) ?= *((?:[0-9a-f]+ ?)+)`)

// parseRegisters reads the text of 'info registers -a'.
func parseRegisters(text string) (all []CPU, err error) {
	for i, part := range strings.Split(text, "CPU#") {
		if i == 0 {
			continue
		}
		values := map[string]string{}
		for _, at := range registerName.FindAllStringSubmatchIndex(part, -1) {
			name, value := part[at[2]:at[3]], part[at[4]:at[5]]
			if _, ok := values[name]; !ok {
				values[name] = value
			}
		}
		word := func(name string, n int) (v uint64) {
			fields := strings.Fields(values[name])
			if n >= len(fields) {
				err = errors.Join(err, fmt.Errorf("no %s", name))
				return 0
			}
			v, e := strconv.ParseUint(fields[n], 16, 64)
			if e != nil {
				err = errors.Join(err, fmt.Errorf("%s: %w", name, e))
			}
			return v
		}
		segment := func(name string) (s kvm.Segment) {
			s.Selector, s.Base, s.Limit = uint16(word(name, 0)), word(name, 1), uint32(word(name, 2))
			// The second word of a descriptor (SDM Vol. 3, 3.4.5).
			flags := word(name, 3)
			bit := func(n uint) uint8 { return uint8(flags >> n & 1) }
			s.Typ, s.S, s.DPL, s.Present = uint8(flags>>8&15), bit(12), uint8(flags>>13&3), bit(15)
			s.AVL, s.L, s.DB, s.G = bit(20), bit(21), bit(22), bit(23)
			return s
		}
		c := CPU{Known: true, HasDebug: true, Halted: values["HLT"] == "1"}
		r, s := (*x86.Regs)(&c.Regs), &c.Sregs
		_, short := values["EIP"] // code of 32 and 16 bits: QEMU shows eight registers
		for i, to := range r.Fields() {
			name := strings.ToUpper(x86.RegNames[i])
			if name == "RFLAGS" {
				name = "RFL"
			}
			if _, err := strconv.Atoi(name[1:]); short && err == nil {
				continue
			} else if short {
				name = "E" + name[1:]
			}
			*to = word(name, 0)
		}
		for name, to := range map[string]*uint64{
			"CR0": &s.CR0, "CR2": &s.CR2, "CR3": &s.CR3, "CR4": &s.CR4, "EFER": &s.EFER,
			"DR0": &c.Debug.DB[0], "DR1": &c.Debug.DB[1], "DR2": &c.Debug.DB[2], "DR3": &c.Debug.DB[3], "DR6": &c.Debug.DR6, "DR7": &c.Debug.DR7,
		} {
			*to = word(name, 0)
		}
		for name, to := range map[string]*kvm.Segment{"CS": &s.CS, "DS": &s.DS, "ES": &s.ES, "FS": &s.FS, "GS": &s.GS, "SS": &s.SS, "TR": &s.TR, "LDT": &s.LDT} {
			*to = segment(name)
		}
		s.GDT.Base, s.GDT.Limit = word("GDT", 0), uint16(word("GDT", 1))
		s.IDT.Base, s.IDT.Limit = word("IDT", 0), uint16(word("IDT", 1))
		all = append(all, c)
	}
	return all, err
}
