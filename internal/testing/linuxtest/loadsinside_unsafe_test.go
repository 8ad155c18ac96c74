package linuxtest

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// What TestLoads has a program in the guest do: system calls with addresses of memory of all kinds.

// loadsMark is the first argument of these calls.
const loadsMark = -77

// loadsCase is an address that is passed to the kernel.
type loadsCase struct {
	name   string
	at     uintptr
	before func() // just before a call
}

// loadsCases makes memory of many kinds. It stays as it is.
func loadsCases() ([]loadsCase, error) {
	page := os.Getpagesize()
	var failed error
	mmap := func(n, prot, flags int) []byte {
		b, err := unix.Mmap(-1, 0, n, prot, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|flags)
		if err != nil && failed == nil {
			failed = err
		}
		return b
	}
	must := func(err error) {
		if err != nil && failed == nil {
			failed = err
		}
	}
	const rw = unix.PROT_READ | unix.PROT_WRITE
	pages := mmap(8*page, rw, 0)
	huge := mmap(8<<20, rw, 0)
	if failed != nil {
		return nil, failed
	}
	addr := func(b []byte) uintptr { return uintptr(unsafe.Pointer(&b[0])) }
	none := func() {}
	var all []loadsCase
	add := func(name string, at uintptr, before func()) { all = append(all, loadsCase{name, at, before}) }
	put := func(name string, at []byte, text string) { copy(at, text); add(name, addr(at), none) }

	put("text", pages[64:], "/none/text\x00")
	put("unaligned", pages[131:], "/none/unaligned\x00")
	put("long", pages[256:], "/none/"+strings.Repeat("0123456789", 20)+"\x00")
	put("empty", pages[600:], "\x00")
	put("two pages", pages[page-5:], "/none/two pages\x00")
	put("to the end", pages[3*page-6:], "/none\x00") // page 3 is not there
	put("over the end", pages[3*page-100:][:4], "/no/")
	add("unmapped", addr(pages)+uintptr(3*page)+8, none)
	copy(pages[4*page:], "/none/no access\x00")
	must(unix.Mprotect(pages[4*page:5*page], unix.PROT_NONE))
	add("no access", addr(pages[4*page:]), none)
	copy(pages[5*page:], "/none/read only\x00")
	must(unix.Mprotect(pages[5*page:6*page], unix.PROT_READ))
	add("read only", addr(pages[5*page:]), none)
	fresh := pages[6*page : 7*page]
	add("not present", addr(fresh), func() {
		fresh[0] = 'x'
		must(unix.Madvise(fresh, unix.MADV_DONTNEED))
	})
	_ = unix.Madvise(huge, unix.MADV_HUGEPAGE) // kernels may have no such pages
	for i := 0; i < len(huge); i += page {
		huge[i] = '/'
	}
	put("huge", huge[5<<20:], "/none/huge\x00")
	if f, err := os.Open("/proc/self/exe"); err == nil {
		b, err := unix.Mmap(int(f.Fd()), 0, page, unix.PROT_READ, unix.MAP_PRIVATE)
		must(err)
		if err == nil {
			add("file", addr(b)+1, func() { _ = b[0] })
			add("file, not present", addr(b)+1, func() { must(unix.Madvise(b, unix.MADV_DONTNEED)) })
		}
	}
	for _, c := range []struct {
		name string
		at   uint64
	}{
		{"null", 0}, {"first page", 4095}, {"the end of user memory", 0x7fffffffeffc}, {"beyond it", 0x7ffffffff000}, {"not canonical", 0x800000000000},
		{"before it", 0x7fffffffffff}, {"not canonical either", 0xffff7fffffffffff}, {"direct map's hole", 0xffff800000000000},
		{"vsyscall", 0xffffffffff600000}, {"last", ^uint64(0)}, {"last word", ^uint64(0) - 7}, {"poison", 0xdead000000000100}, {"fixmap", 0xffffffffff5fb000},
		{"CPU entry area", 0xfffffe0000000000}, {"57 bits", 0x00ffffffffffffff},
	} {
		add(c.name, uintptr(c.at), none)
	}
	for name, at := range map[string]string{"kernel text": "wake_up_process", "kernel data": "linux_banner"} {
		if a, err := kernelSymbol(at); err == nil {
			add(name, a, none)
		}
	}
	if at, size, err := mappedDevice(); err == nil {
		add("device", at, none)
		add("after device", at+size, none)
	}
	// At last, so that nothing else gets the page.
	if _, _, e := syscall.Syscall(unix.SYS_MUNMAP, addr(pages[3*page:]), uintptr(page), 0); e != 0 {
		must(e)
	}
	return all, failed
}

// kernelSymbol returns the address of a symbol of the running kernel.
func kernelSymbol(name string) (uintptr, error) {
	b, err := os.ReadFile("/proc/kallsyms")
	if err != nil {
		return 0, err
	}
	for l := range bytes.Lines(b) {
		if w := strings.Fields(string(l)); len(w) == 3 && w[2] == name {
			at, err := strconv.ParseUint(w[0], 16, 64)
			return uintptr(at), err
		}
	}
	return 0, os.ErrNotExist
}

// mappedDevice returns where the kernel has registers of a device, which are not memory.
func mappedDevice() (at, size uintptr, err error) {
	f, err := os.Open("/proc/vmallocinfo")
	if err != nil {
		return 0, 0, err
	}
	defer f.Close()
	for in := bufio.NewScanner(f); in.Scan(); {
		var from, to uint64
		if !strings.Contains(in.Text(), "ioremap") || strings.Contains(in.Text(), "acpi") {
			continue
		}
		if _, err := fmt.Sscanf(in.Text(), "0x%x-0x%x", &from, &to); err == nil {
			return uintptr(from), uintptr(to - from), nil
		}
	}
	return 0, 0, os.ErrNotExist
}

// serveLoads makes the calls.
type serveLoads struct{ cases []loadsCase }

// run makes a call for each of the cases, and returns their names.
func (s *serveLoads) run() (string, error) {
	if s.cases == nil {
		cases, err := loadsCases()
		if err != nil {
			return "", err
		}
		s.cases = cases
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var names []string
	for _, c := range s.cases {
		c.before()
		mark := loadsMark
		_, _, _ = syscall.RawSyscall6(unix.SYS_OPENAT, uintptr(mark), c.at, 0, 0, 0, 0)
		names = append(names, strings.ReplaceAll(c.name, " ", "_"))
	}
	return strings.Join(names, " "), nil
}

// openMissing opens a file that does not exist n times, and returns how many nanoseconds of the guest's clock the fastest of ten
// tenths of them has taken.
func openMissing(n int) int64 {
	path := [...]byte{10: 0}
	copy(path[:], "/none/file")
	least := int64(1<<63 - 1)
	for range 10 {
		began := nanoseconds()
		for range n / 10 {
			mark := loadsMark
			_, _, _ = syscall.RawSyscall6(unix.SYS_OPENAT, uintptr(mark), uintptr(unsafe.Pointer(&path)), 0, 0, 0, 0)
		}
		least = min(least, nanoseconds()-began)
	}
	return least
}

func nanoseconds() int64 {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC_RAW, &now)
	return now.Nano()
}

// race makes n calls with an address of a page that another thread maps and unmaps meanwhile.
func (s *serveLoads) race(n int) error {
	page := os.Getpagesize()
	b, err := unix.Mmap(-1, 0, page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return err
	}
	at := uintptr(unsafe.Pointer(&b[0]))
	copy(b, "/none/race\x00")
	var stop atomic.Bool
	ended := make(chan error, 1)
	go func() {
		for !stop.Load() {
			for _, prot := range []int{unix.PROT_NONE, unix.PROT_READ | unix.PROT_WRITE} {
				if err := unix.Mprotect(b, prot); err != nil {
					ended <- err
					return
				}
			}
		}
		ended <- nil
	}()
	for range n {
		mark := loadsMark
		_, _, _ = syscall.RawSyscall6(unix.SYS_OPENAT, uintptr(mark), at, 0, 0, 0, 0)
	}
	stop.Store(true)
	return <-ended
}
