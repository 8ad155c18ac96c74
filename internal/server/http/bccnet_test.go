package http

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Events of the tools below, as their headers declare them. Addresses are those of IPv4, with
// room for one of IPv6.
const (
	bindEvent    = "addr:16 ts:u64 pid:u32 if:u32 ret:i32 port:u16 proto:u16 opts:u8 ver:u8 task:s16"
	listenEvent  = "addr:16 pid:u32 proto:u32 backlog:i32 ret:i32 port:u16 task:s16"
	connectEvent = "saddr:16 daddr:16 task:s16 ts:u64 af:u32 pid:u32 uid:u32 sport:u16 dport:u16"
	latencyEvent = "saddr:16 daddr:16 comm:s16 delta:u64 ts:u64 tgid:u32 af:u32 lport:u16 dport:u16"
	traceEvent   = "saddr:16 daddr:16 task:s16 ts:u64 af:u32 pid:u32 uid:u32 netns:u32 dport:u16 sport:u16 type:u8"
)

var netTools = []bccTool{
	{name: "bindsnoop", event: bindEvent, set: map[string]string{"target_pid": "PID", "ignore_errors": "false"},
		load: func(l *load) {
			for _, c := range []struct{ domain, kind, proto int }{
				{unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_TCP}, {unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_UDP}, {unix.AF_INET6, unix.SOCK_STREAM, unix.IPPROTO_TCP},
			} {
				ver, addr := 4, unix.Sockaddr(&unix.SockaddrInet4{Addr: loopback})
				if c.domain == unix.AF_INET6 {
					ver, addr = 6, &unix.SockaddrInet6{Addr: [16]byte{15: 1}}
				}
				fd, other := ok(unix.Socket(c.domain, c.kind, 0)), ok(unix.Socket(c.domain, c.kind, 0))
				exitOnError(unix.Bind(fd, addr))
				at := port(fd)
				l.want("IPv%d port %d protocol %d options 0: 0", ver, at, c.proto)
				switch a := addr.(type) {
				case *unix.SockaddrInet4:
					a.Port = at
				case *unix.SockaddrInet6:
					a.Port = at
				}
				l.want("IPv%d port 0 protocol %d options 0: %d", ver, c.proto, errno(unix.Bind(other, addr)))
				exitOnError(unix.SetsockoptInt(other, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1))
				exitOnError(unix.SetsockoptInt(other, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1))
				switch a := addr.(type) {
				case *unix.SockaddrInet4:
					a.Port = 0
				case *unix.SockaddrInet6:
					a.Port = 0
				}
				exitOnError(unix.Bind(other, addr))
				l.want("IPv%d port %d protocol %d options 24: 0", ver, port(other), c.proto)
				closeAll(fd, other)
			}
		},
		got: func(r *toolRun) (all []string) {
			for _, e := range r.events {
				all = append(all, fmt.Sprintf("IPv%v port %v protocol %v options %v: %v", e["ver"], e["port"], e["proto"], e["opts"], e["ret"]))
			}
			return all
		}},
	{name: "solisten kprobe", section: kprobes, event: listenEvent, set: map[string]string{"target_pid": "PID"}, load: listenLoad, got: listenSeen},
	{name: "solisten fexit", section: fentries, event: listenEvent, set: map[string]string{"target_pid": "PID"}, load: listenLoad, got: listenSeen},
	{name: "tcpconnect", event: connectEvent, set: map[string]string{"filter_pid": "PID", "source_port": "true"},
		load: func(l *load) {
			fd, at := listenLoopback(16)
			for range 7 {
				c, from := dial(at)
				l.want("127.0.0.1:%d to 127.0.0.1:%d by %d", from, at, os.Getpid())
				exitOnError(unix.Close(c))
			}
			exitOnError(unix.Close(fd))
			// A refusal comes behind the return of tcp_v4_connect.
			refused := ok(unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0))
			exitOnError(unix.Bind(refused, &unix.SockaddrInet4{Addr: loopback}))
			from := port(refused)
			if err := unix.Connect(refused, &unix.SockaddrInet4{Port: at, Addr: loopback}); err != unix.ECONNREFUSED {
				panic(err)
			}
			l.want("127.0.0.1:%d to 127.0.0.1:%d by %d", from, at, os.Getpid())
			exitOnError(unix.Close(refused))
			six, six6 := ok(unix.Socket(unix.AF_INET6, unix.SOCK_STREAM, 0)), ok(unix.Socket(unix.AF_INET6, unix.SOCK_STREAM, 0))
			one := [16]byte{15: 1}
			exitOnError(unix.Bind(six, &unix.SockaddrInet6{Addr: one}))
			exitOnError(unix.Listen(six, 4))
			exitOnError(unix.Connect(six6, &unix.SockaddrInet6{Addr: one, Port: port(six)}))
			l.want("::1:%d to ::1:%d by %d", port(six6), port(six), os.Getpid())
			closeAll(six, six6)
		},
		got: func(r *toolRun) (all []string) {
			for _, e := range r.events {
				ip := func(field string) netip.Addr {
					b := e[field].([]byte)
					if e["af"] == uint64(unix.AF_INET) {
						b = b[:4]
					}
					a, _ := netip.AddrFromSlice(b)
					return a
				}
				all = append(all, fmt.Sprintf("%v:%v to %v:%v by %v", ip("saddr"), e["sport"], ip("daddr"), swap(e["dport"]), e["pid"]))
			}
			return all
		}},
	{name: "tcpconnect counts", set: map[string]string{"filter_pid": "PID", "do_count": "true"}, unordered: true,
		load: func(l *load) {
			for i := range 3 {
				fd, at := listenLoopback(16)
				for range 3 * (i + 1) {
					c, _ := dial(at)
					exitOnError(unix.Close(c))
				}
				exitOnError(unix.Close(fd))
				l.want("port %d: %d", at, 3*(i+1))
			}
		},
		got: func(r *toolRun) (all []string) {
			keys, values := r.dump("ipv4_count")
			for i, k := range keys {
				all = append(all, fmt.Sprintf("port %d: %v", swap(k["dport"]), values[i][""]))
			}
			return all
		}},
	{name: "tcpconnlat kprobe", section: kprobes, event: latencyEvent, set: map[string]string{"targ_tgid": "PID"}, load: latencyLoad, got: latencySeen},
	{name: "tcpconnlat fentry", section: fentries, event: latencyEvent, set: map[string]string{"targ_tgid": "PID"}, load: latencyLoad, got: latencySeen},
	{name: "tcptracer", event: traceEvent, set: map[string]string{"filter_pid": "PID"},
		load: func(l *load) {
			fd, at := listenLoopback(4)
			for range 4 {
				c, s, from := connectPair(fd, at)
				l.want("0 %d to %d", from, at)
				l.want("1 %d to %d", at, from)
				exitOnError(unix.Close(c))
				l.want("2 %d to %d", from, at)
				exitOnError(unix.Close(s))
				l.want("2 %d to %d", at, from)
			}
			exitOnError(unix.Close(fd))
		},
		got: func(r *toolRun) (all []string) { // connect 0, accept 1, close 2
			for _, e := range r.events {
				all = append(all, fmt.Sprintf("%v %d to %d", e["type"], swap(e["sport"]), swap(e["dport"])))
			}
			return all
		}},
	{name: "tcprtt kprobe", section: kprobes, set: map[string]string{"targ_show_ext": "true"}, load: rttLoad, got: rttSeen},
	{name: "tcprtt fentry", section: fentries, set: map[string]string{"targ_show_ext": "true"}, load: rttLoad, got: rttSeen},
	{name: "tcpsynbl", section: kprobes,
		load: func(l *load) {
			fd, at := listenLoopback(37)
			var all []int
			for range 9 { // that nobody accepts
				c, _ := dial(at)
				all = append(all, c)
			}
			closeAll(append(all, fd)...)
			// Before each there were 0 to 8: log2 of that, 0 for none.
			l.want("37: [2 2 4 1]")
		},
		got: func(r *toolRun) (all []string) {
			keys, values := r.dump("hists")
			for i, v := range values {
				all = append(all, fmt.Sprintf("%v: %v", keys[i][""], v["slots"].([]any)[:4]))
			}
			return all
		}},
	{name: "tcptop", set: map[string]string{"target_pid": "PID"}, unordered: true,
		load: func(l *load) {
			fd, at := listenLoopback(4)
			for i := range 3 {
				c, s, from := connectPair(fd, at)
				size := 1000 * (i + 1)
				for range i + 1 {
					ok(unix.Write(c, make([]byte, size)))
				}
				received := 0
				for received < size*(i+1) {
					received += ok(unix.Read(s, make([]byte, 777)))
				}
				l.want("%d to %d: sent %d received 0", from, at, size*(i+1))
				l.want("%d to %d: sent 0 received %d", at, from, received)
				closeAll(c, s)
			}
			exitOnError(unix.Close(fd))
		},
		got: func(r *toolRun) (all []string) {
			keys, values := r.dump("ip_map")
			for i, k := range keys {
				all = append(all, fmt.Sprintf("%v to %v: sent %v received %v", k["lport"], k["dport"], values[i]["sent"], values[i]["received"]))
			}
			return all
		}},
}

// swap turns a number around that is in the network's order.
func swap(v any) uint16 {
	n, _ := strconv.ParseUint(fmt.Sprint(v), 10, 16)
	return uint16(n)<<8 | uint16(n)>>8
}

func listenLoad(l *load) {
	for _, backlog := range []int{1, 7, 128} {
		fd, at := listenLoopback(backlog)
		l.want("port %d backlog %d: 0", at, backlog)
		exitOnError(unix.Listen(fd, backlog+1))
		l.want("port %d backlog %d: 0", at, backlog+1)
		exitOnError(unix.Close(fd))
	}
	fd, at := listenLoopback(1)
	c, s, _ := connectPair(fd, at)
	l.want("port %d backlog 1: 0", at)
	l.want("port %d backlog 3: %d", at, errno(unix.Listen(s, 3))) // it is connected
	closeAll(c, s, fd)
}

func listenSeen(r *toolRun) (all []string) {
	for _, e := range r.events {
		all = append(all, fmt.Sprintf("port %v backlog %v: %v", e["port"], e["backlog"], e["ret"]))
	}
	return all
}

func latencyLoad(l *load) {
	fd, at := listenLoopback(16)
	for range 6 {
		c, from := dial(at)
		l.want("%d to %d by %s", from, at, bccGuest[1:])
		exitOnError(unix.Close(c))
	}
	exitOnError(unix.Close(fd))
}

func latencySeen(r *toolRun) (all []string) {
	for _, e := range r.events {
		if e["delta"] == uint64(0) || bytes.Equal(e["saddr"].([]byte), make([]byte, 16)) {
			all = append(all, fmt.Sprint(e))
		}
		all = append(all, fmt.Sprintf("%v to %d by %s", e["lport"], swap(e["dport"]), e["comm"]))
	}
	return all
}

func rttLoad(l *load) {
	n := countCalls(func() {
		fd, at := listenLoopback(4)
		c, s, _ := connectPair(fd, at)
		for range 20 {
			ok(unix.Write(c, make([]byte, 100)))
			ok(unix.Read(s, make([]byte, 100)))
		}
		closeAll(c, s, fd)
	}, "tcp_rcv_established")
	l.want("%s segments", n[0])
}

func rttSeen(r *toolRun) (all []string) {
	_, values := r.dump("hists")
	for _, v := range values {
		all = append(all, fmt.Sprintf("%d segments", total(v["slots"])))
		if n := fmt.Sprintf("%v segments", v["cnt"]); n != all[len(all)-1] {
			all = append(all, n)
		}
	}
	return all
}
