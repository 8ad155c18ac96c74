package jail

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// threadsEnv has this binary confine itself and make threads.
const threadsEnv = "GUESTPROBE_TEST_THREADS"

func TestMain(m *testing.M) {
	if os.Getenv(threadsEnv) != "" {
		if err := makeThreads(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

const vcpus, others = 4, 60

// makeThreads confines the process and threads as vCPUs are, has these start goroutines that take a thread each, and checks by whom
// those were made: none has a vCPU's filter.
func makeThreads() error {
	if _, err := Enter(Config{Group: -1, Files: Files{List: []string{"/proc/self"}}}); err != nil {
		return err
	}
	runtime.GOMAXPROCS(vcpus + others)
	var own, made []int
	var mu sync.Mutex
	var at, blocked, over sync.WaitGroup
	end := make(chan struct{})
	var failed error
	blocked.Add(vcpus * others)
	over.Add(vcpus)
	at.Add(vcpus)
	for range vcpus {
		go func() {
			defer over.Done()
			runtime.LockOSThread()
			err := VCPU()
			mu.Lock()
			own = append(own, unix.Gettid())
			failed = errors.Join(failed, err)
			mu.Unlock()
			at.Done()
			at.Wait()
			for range others {
				go func() {
					runtime.LockOSThread() // and blocks in a futex of its own: the next one needs another thread
					defer runtime.UnlockOSThread()
					mu.Lock()
					made = append(made, unix.Gettid())
					mu.Unlock()
					blocked.Done()
					<-end
				}()
			}
			runtime.GC() // which has signals sent, and memory taken and given back, from here
			_ = make([]byte, 64<<20)
			blocked.Wait()
		}()
	}
	over.Wait()
	defer close(end)
	if failed != nil {
		return failed
	}
	slices.Sort(made)
	if n := len(slices.Compact(slices.Clone(made))); n != vcpus*others {
		return fmt.Errorf("%d threads for %d goroutines", n, vcpus*others)
	}
	for _, tid := range made {
		if slices.Contains(own, tid) {
			return fmt.Errorf("thread %d is a vCPU's", tid)
		}
		if n, err := filters(tid); err != nil || n != 1 {
			return fmt.Errorf("thread %d has %d filters (%v), want the process's alone", tid, n, err)
		}
	}
	return nil
}

// filters returns how many filters a thread has; 1 where the kernel does not say (before Linux 5.10).
func filters(tid int) (int, error) {
	b, err := os.ReadFile(filepath.Join("/proc/self/task", strconv.Itoa(tid), "status"))
	if err != nil {
		return 0, err
	}
	_, n, ok := bytes.Cut(b, []byte("\nSeccomp_filters:"))
	if !ok {
		return 1, nil
	}
	n, _, _ = bytes.Cut(n, []byte("\n"))
	return strconv.Atoi(strings.TrimSpace(string(n)))
}

// TestThreads: the Go runtime makes no thread from one that is a vCPU's, so that its filter stays there; there are many threads
// to be made, and nothing that the runtime asks for is refused to it.
func TestThreads(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), threadsEnv+"=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
}
