package http

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	nats "github.com/nats-io/nats-server/v2/server"
)

// natsEnv has this binary be a server of NATS that keeps what it keeps in the folder of that name.
const natsEnv = "GUESTPROBE_TEST_NATS"

// natsMain serves until standard input ends, and says where.
func natsMain(dir string) int {
	s, err := nats.NewServer(&nats.Options{
		Host: "127.0.0.1", Port: nats.RANDOM_PORT, HTTPHost: "127.0.0.1", HTTPPort: nats.RANDOM_PORT, NoSigs: true, NoLog: true, JetStream: true, StoreDir: dir,
		MaxPayload: 8 << 20, WriteDeadline: 30 * time.Second,
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	s.Start()
	for !s.ReadyForConnections(time.Second) {
		continue // who waits for us knows how long
	}
	fmt.Println(s.ClientURL())
	fmt.Println("http://" + s.MonitorAddr().String())
	_, _ = io.Copy(io.Discard, os.Stdin)
	s.Shutdown()
	s.WaitForShutdown()
	return 0
}

// natsProcess is such a server.
type natsProcess struct {
	t           *testing.T
	pid         int
	url, status string
}

func startNATS(t *testing.T) *natsProcess {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env, cmd.Stderr = append(os.Environ(), natsEnv+"="+t.TempDir()), os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		_ = cmd.Wait()
	})
	lines := bufio.NewScanner(out)
	s := &natsProcess{t: t, pid: cmd.Process.Pid}
	for _, to := range []*string{&s.url, &s.status} {
		if !lines.Scan() {
			t.Fatal("a server does not begin")
		}
		*to = lines.Text()
	}
	return s
}

// traffic is what some clients of a server have sent and got.
type traffic struct{ sent, got, sentBytes, gotBytes int64 }

func (x traffic) sub(y traffic) traffic {
	return traffic{x.sent - y.sent, x.got - y.got, x.sentBytes - y.sentBytes, x.gotBytes - y.gotBytes}
}

func (x traffic) messages() int64 { return x.sent + x.got }
func (x traffic) bytes() int64    { return x.sentBytes + x.gotBytes }

// traffic is that of the clients whose names begin so.
func (s *natsProcess) traffic(name string) (x traffic) {
	s.t.Helper()
	hc := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	r, err := hc.Get(s.status + "/connz?limit=1024")
	if err != nil {
		s.t.Fatal(err)
	}
	defer r.Body.Close()
	var z nats.Connz
	if err := json.NewDecoder(r.Body).Decode(&z); err != nil {
		s.t.Fatal(err)
	}
	for _, c := range z.Conns {
		if strings.HasPrefix(c.Name, name) {
			x = traffic{x.sent + c.InMsgs, x.got + c.OutMsgs, x.sentBytes + c.InBytes, x.gotBytes + c.OutBytes}
		}
	}
	return x
}

// settle returns what daemons have sent and got when that has become no more for a while.
func (s *natsProcess) settle() traffic {
	for x := s.traffic("guestprobed"); ; {
		time.Sleep(time.Second)
		y := s.traffic("guestprobed")
		if x == y {
			return y
		}
		x = y
	}
}

// memory is what a process has in memory, in bytes.
func memory(t *testing.T, pid int) float64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		t.Fatal(err)
	}
	pages, err := strconv.Atoi(strings.Fields(string(text))[1])
	if err != nil {
		t.Fatal(err)
	}
	return float64(pages * os.Getpagesize())
}

// processorTime is that of a process until now.
func processorTime(t *testing.T, pid int) (ns float64) {
	for _, thread := range threadTimes(t, pid) {
		ns += float64(thread)
	}
	return ns
}
