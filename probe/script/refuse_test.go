package script

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// doubleTuples are assignments of tuples of which each is twice the one before.
func doubleTuples(n int) string {
	s := strings.Builder{}
	for i := range n {
		fmt.Fprintf(&s, "$%c = ($%c, $%[2]c);", name(i+1), name(i))
	}
	return s.String()
}

// name is a letter for a variable.
func name(i int) rune {
	if i < 26 {
		return rune('a' + i)
	}
	return rune('A' + i - 26)
}

// TestRefused: unsupported parts of the language are rejected by name, most of them
// with a suggestion, and errors have their place.
func TestRefused(t *testing.T) {
	for _, c := range [][2]string{
		{`kprobe:vfs_read { override(1); }`, "stdin:1:19-30: ERROR: override() is an unsafe function being used in safe mode\nkprobe:vfs_read { override(1); }\n                  ~~~~~~~~~~~\nHINT: run the script with --unsafe"},
		{`kprobe:vfs_read { @ = reg("edi"); }`, "'edi' is not a valid register on this architecture (x86_64)"},
		{`kprobe:vfs_read { @ = reg("%%rdi"); }`, "'%%rdi' is not a valid register on this architecture (x86_64)"},
		{`kprobe:vfs_read { setreg("ax", 1); }`, "setreg() is an unsafe function being used in safe mode"},
		{`kprobe:vfs_read { poke(arg0, "x"); }`, "poke() is an unsafe function being used in safe mode"},
		{`kprobe:vfs_read { return(1); }`, "return() is an unsafe function being used in safe mode"},
		{`BEGIN { print(fake); }`, "stdin:1:15-19: ERROR: Unknown identifier: 'fake'\nBEGIN { print(fake); }\n              ~~~~"},
		{"BEGIN {\n\t@x = cout();\n}", "stdin:2:7-13: ERROR: Unknown function: 'cout'\n @x = cout();\n      ~~~~~~\nHINT: did you mean count?"},
		{`kprobe:vfs_red { }`, "HINT: did you mean vfs_read?"},
		{`usdt:*:p:n { }`, "usdt:*:p:n: patterns for files are not supported\nusdt:*:p:n { }\n~~~~~~~~~~\nHINT: write the path of one file of the guest, or a probe for each, separated by commas"},
		{`usdt:/usr/*/app:p:n { }`, "usdt:/usr/*/app:p:n: patterns for files are not supported"},
		{`uprobe:libm*:cos { }`, "uprobe:libm*:cos: patterns for files are not supported"},
		{`uprobe:/usr/bin/*:main { }`, "No matches for uprobe /usr/bin/*:main\nuprobe:/usr/bin/*:main { }\n~~~~~~~~~~~~~~~~~~~~~~\nHINT: patterns for files are not supported: write the path of one file"},
		{`BEGIN { print(comm(1)); }`, "comm(PID) is not supported\nBEGIN { print(comm(1)); }\n              ~~~~~~~\nHINT: write comm in a probe with the condition /pid == PID/; 'guestprobe tasks' lists the names of all tasks"},
		{`kprobe:/bin/cat:main { }`, "kprobe is not in a file: it is of the guest's kernel\nkprobe:/bin/cat:main { }\n~~~~~~~~~~~~~~~~~~~~\nHINT: write uprobe:/bin/cat:main"},
		{`fexit:/bin/cat:main { }`, "HINT: write uretprobe:/bin/cat:main"},
		{`BEGIN { print(kstack(orc)); }`, "HINT: there are bpftrace, perf, raw, build_id, and unwind"},
		{`kprob:vfs_read { }`, "HINT: did you mean kprobe?"},
		{`hardware:cycles:1 { }`, "probe type 'hardware' is not supported"},
		{`BEGIN { @ = quantize(1); }`, "HINT: that is DTrace's name; write hist(n)"},
		{`BEGIN { system("ls"); }`, "system is not supported"},
		{`BEGIN { print(arg0); }`, "The arg0 builtin can not be used with 'begin' probes"},
		{`kprobe:vfs_read { print(retval); }`, "can only be used with 'kretprobe' probes"},
		{`BEGIN { $x = 1; print($y); }`, "Undefined or undeclared variable: $y"},
		{`BEGIN { if (1) { $x = 1; } print($x); }`, "Undefined or undeclared variable: $x\nBEGIN { if (1) { $x = 1; } print($x); }\n                                 ~~\nHINT: it lives in the block in which it is first assigned to: write let $x; before that"},
		{`BEGIN { print(@x); }`, "Undefined map: @x"},
		{`BEGIN { @start[1] = 1; print(@strat); }`, "stdin:1:30-36: ERROR: Undefined map: @strat\nBEGIN { @start[1] = 1; print(@strat); }\n                             ~~~~~~\nHINT: did you mean @start?"},
		{`BEGIN { $start = 1; print($strat); }`, "HINT: did you mean $start?"},
		{`BEGIN { @x[1] = 1; @x = 2; }`, "previously used with an explicit key"},
		{`BEGIN { @x[1] = 1; @x["a"] = 2; }`, "when map expects arguments"},
		{`BEGIN { $x = 1; $x = "a"; }`, "Type mismatch for $x"},
		{`kprobe:vfs_read { @ = func; @ = "text"; @ = ksym(1); }`, "when map already has a type 'string[9]'"},
		{`BEGIN { let $s: string[0]; }`, "a string has 1 to 16384 bytes"},
		{`BEGIN { let $s: string; $s = 1; }`, "Type mismatch for $s"},
		{`BEGIN { $x = count(); }`, "count() must be assigned directly to a map"},
		{`BEGIN { @ = lhist(1, 0, 10000, 1); }`, "lhist() too many buckets, must be <= 1000 (would need 10000)"},
		{`BEGIN { printf("%d\n", "x"); }`, "unsupported format specifier for type 'string[2]': d"},
		{`BEGIN { printf("%q\n", 1); }`, `printf: unknown format "%q"`},
		{`BEGIN { $x = if 1 { 2 }; }`, "an if that is a value has else, and each of its blocks ends with an expression and no semicolon"},
		{`BEGIN { $x = if 1 { 2; } else { 3 }; }`, "an if that is a value has else"},
		{`BEGIN { _ = count(); }`, "count() must be assigned directly to a map"},
		{`struct a { char x; int y; } __attribute__((mode(SI))) BEGIN { }`, "stdin:1:44-48: ERROR: the attribute \"mode\" is not supported"},
		{`struct a { char x; } __attribute__((aligned(3))) BEGIN { }`, "aligned takes a power of 2, up to 4096"},
		{`struct a { char x; } __attribute__((packed aligned)) BEGIN { }`, "syntax error, unexpected \"aligned\", expecting \",\""},
		{`config = { str_trunc_trailer=5 } BEGIN { }`, "stdin:1:30-31: ERROR: Invalid type for str_trunc_trailer. Type: int. Expected Type: string"},
		{`config = { str_trunc_trailer="` + strings.Repeat(".", 65) + `" } BEGIN { }`, "str_trunc_trailer: a text of 65 bytes: at most 64"},
		{`config = { max_strlen=0 } BEGIN { }`, "stdin:1:23-24: ERROR: max_strlen: want a number from 1 to 16384"},
		{`config = { max_strlen=16385 } BEGIN { }`, "stdin:1:23-28: ERROR: max_strlen: want a number from 1 to 16384"},
		{`BEGIN { print(buf(0, 16385)); }`, "buf() length: want 1 to 16384"},
		{`config = { max_strlen=16384 } BEGIN { printf("%s %s", str(0), str(1)); }`, "stdin:1:39-70: ERROR: printf() of 32776 bytes: at most 24576"},
		{`config = { max_strlen=16384 } BEGIN { @[str(0), str(1)] = 1; }`, "stdin:1:39-40: ERROR: the key of @ has 32768 bytes: at most 16896"},
		{`config = { max_strlen=16384; max_map_keys=16384 } BEGIN { @[str(0)] = 1; }`, "stdin:1:59-60: ERROR: the maps take more than 512 MiB, most of it @: 16384 elements, with keys of 16384 bytes and values of 8"},
		{`let @b = hash(9000); config = { max_strlen=11000 } BEGIN { @b[1] = str(0); @a[1] = str(0); @c[str(0)] = count(); }`, "most of it @b: 9000 elements, with keys of 8 bytes and values of 11000"},
		{`BEGIN { break; }`, "break statement outside of a loop"},
		{`BEGIN { @a[1] = stats(1); for ($kv : @a) { } }`, "for does not support a map of stats()"},
		{`BEGIN { @a[1] = hist(1); print(len(@a)); }`, "len() does not support a map of hist()"},
		{`BEGIN { @a = hist(1); if (@a > 1) { } }`, "a map of hist() has no value for an expression"},
		{`BEGIN { @a[1] = stats(1); print(@a[1]); }`, "Map type stats cannot print the value of individual keys. You must print the whole map."},
		{`BEGIN { @a = count(); @b = @a; }`, "HINT: write @b = (int64)@a for its number"},
		{`BEGIN { @a = stats(1); @b = 1; @b = @a; }`, "a map of stats() has no value for an expression"},
		{`BEGIN { @a = count(); @a++; }`, "trying to assign value of type 'int64' when map already has a type 'count'"},
		{`BEGIN { @a = 1; print(len(@a)); }`, "len() expects a map with explicit keys"},
		{`fn f() { } BEGIN { }`, "HINT: write macro NAME($x, @y, z) { ... } in the script itself"},
		{`macro f($x) { $x } macro f($y) { $y } BEGIN { }`, "Redefinition of macro: f"},
		{`macro f($x, $x) { $x } BEGIN { }`, "Variable for macro argument has already been used: $x"},
		{`macro f($x) { @y = $x; } BEGIN { $z = 1; f($z); }`, "stdin:1:15-17: ERROR: Unhygienic access to map: @y. Maps must be passed into the macro as arguments."},
		{`macro f($x) { $x } BEGIN { print(f()); }`, "Call to f() has the wrong number of arguments. Expected: 1 but got 0."},
		{`macro f($x) { $x } BEGIN { print(f); }`, "Call to f() has the wrong number of arguments. Expected: 1 but got 0."},
		{`macro f($x) { $x } BEGIN { print(f(1)); }`, "Mismatched arg. f() expects a variable for arg $x but got an expression."},
		{`macro f(@x) { @x } BEGIN { $y = 1; print(f($y)); }`, "Mismatched arg. f() expects a map for arg @x but got a variable."},
		{`macro f(x) { g(x) } macro g(x) { h(x) } macro h(x) { f(x) } BEGIN { print(f(1)); }`, "Recursive macro call detected. Call chain: f > g > h > f"},
		{"#define M M+1\nBEGIN { print(M); }", "Recursive macro call detected. Call chain: M > M"},
		{`macro f(x) { $y = x; } BEGIN { print(f(1)); }`, "this block has no value"},
		{`macro f() { $a = 1; } BEGIN { $a = 2; f(); print($b); }`, "Undefined or undeclared variable: $b"},
		{`macro f(x) { break; } BEGIN { while (1) { f(1); } }`, "break statement outside of a loop"},
		{`macro d(x) { x + x } BEGIN { print(` + strings.Repeat("d(", 20) + `1` + strings.Repeat(")", 20) + `); }`, "macros stand for more than 65536 expressions"},
		{`BEGIN { $a = { $b = 1; $b }; print($b); }`, "Undefined or undeclared variable: $b"},
		{`BEGIN { if (x=1) { } }`, "a condition is a number, not a record\nBEGIN { if (x=1) { } }\n           ~~~~~\nHINT: == compares"},
		{`BEGIN { while ("a", 2) { } }`, "a condition is a number, not a tuple"},
		{`BEGIN { print(&1); }`, "a constant has no address"},
		{`BEGIN { print(offsetof(struct file, f_path->dentry)); }`, "offsetof() takes members of the structure itself, not of what a pointer in it points to"},
		{`BEGIN { @a[()] = 1; }`, "an empty tuple is not a key"},
		{`BEGIN { @a[(), ()] = 1; }`, "the keys of @a have no bytes"},
		{`BEGIN { @a = (); }`, "the values of @a have no bytes"},
		{`let @a = percpuhash(2); BEGIN { @a[1] = 1; }`, "stdin:1:10-20: ERROR: Incompatible map types. Type from declaration: percpuhash. Type from value/key type: hash"},
		{`let @a = percpulruhash(2); BEGIN { @a[1] = 1; }`, "HINT: write lruhash(2)"},
		{`let @a = 1(2); BEGIN { }`, "syntax error, unexpected \"1\", expecting a kind of map"},
		{`macro my() { 1 } BEGIN { print(sizeof(my)); }`, "Cannot resolve unknown type \"my\"\nmacro my() { 1 } BEGIN { print(sizeof(my)); }\n                                      ~~\nHINT: write my() for the value of the macro"},
		{`config = { max_probes = 20001 } BEGIN { }`, "stdin:1:25-30: ERROR: max_probes: want a number from 1 to 20000"},
		{`config = { max_probes = 0 } BEGIN { }`, "max_probes: want a number from 1 to 20000"},
		{`config = { max_probes = "many" } BEGIN { }`, "Invalid type for max_probes. Type: string. Expected Type: int"},
		{`BEGIN { $a = (1, "hi"); let $x: typeof($a) = (1, "longer"); }`, "trying to assign value of type '(int64,string[7])' when variable already has a type '(int64,string[3])'"},
		{`BEGIN { $a = "hi"; let $x: typeof($a); $x = str(5); }`, "trying to assign value of type 'string[64]' when variable already has a type 'string[3]'"},
		{`BEGIN { let $a: typeof(@x) = 1; }`, "stdin:1:24-26: ERROR: Undefined map: @x"},
		{`BEGIN { let $a: typeof({ @a = 1; 1 }) = 1; }`, "Map assignments not allowed inside of typeof or typeinfo"},
		{`BEGIN { print(sizeof(@a++)); @a = 1; }`, "Map assignments not allowed inside of typeof or typeinfo, or inside of sizeof"},
		{`BEGIN { print(getopt("a", 1)); print(getopt("a", "1")); }`, "Command line option 'a' needs to have the same default value in all places it is used. Previous default value: 1"},
		{`BEGIN { print(getopt("a", true)); print(getopt("a")); }`, "Previous default value: true"},
		{`BEGIN { print(getopt("a", 1, "x")); print(getopt("a", 1)); print(getopt("a", 1, "y")); }`, "Command line option 'a' must have the same description in all places it's used"},
		{`BEGIN { print(true / false); }`, "Divide or modulo by 0"},
		{`BEGIN { print(false % false); }`, "Divide or modulo by 0"},
		{`BEGIN { print(kstack(perf, 3, 4)); }`, "kstack() takes one mode and one depth"},
		{`BEGIN { print(ustack(perf, raw)); }`, "ustack() takes one mode and one depth"},
		{`BEGIN { print((bool)pton("127.0.0.1")); }`, "Cannot cast from 'uint8[4]' to 'bool'"},
		{`BEGIN { print((uint16)pton("127.0.0.1")); }`, "Cannot cast from 'uint8[4]' to 'uint16'"},
		{`config = { max_map_key=1 } BEGIN { }`, "HINT: did you mean max_map_keys?"},
		{`BEGIN { print("a" < comm); }`, "The < operator can not be used on strings"},
		{`BEGIN { print(comm + "b"); }`, "The + operator can not be used on a value of type 'string[16]'"},
		{`BEGIN { let $x: uint16 = 65537; }`, "stdin:1:26-31: ERROR: Type mismatch for $x: 65537 does not fit a variable of type 'uint16'\nBEGIN { let $x: uint16 = 65537; }\n                         ~~~~~\nHINT: (uint16)65537 has the bits that fit"},
		{`BEGIN { let $y: int8; $y = 200; }`, "Type mismatch for $y: 200 does not fit a variable of type 'int8'"},
		{`BEGIN { let $y: uint64; $y = -1; }`, "Type mismatch for $y: -1 does not fit a variable of type 'uint64'"},
		{`BEGIN { $x = 1; if ($x) { let $x = 2; } }`, "Variable $x was already declared. Variable shadowing is not allowed."},
		{`BEGIN { for ($x : 1..10) { let $x = 1; } }`, "Variable $x was already declared. Variable shadowing is not allowed."},
		{`BEGIN { print(0xffffffffffffffff + 1); }`, "overflow: the result of these constants does not fit into 64 bits"},
		{`BEGIN { print(0x8000000000000000 + (-1)); }`, "overflow: "},
		{`BEGIN { print(0x7fffffffffffffff - (-1)); }`, "overflow: "},
		{`BEGIN { print(0x8000000000000000 * 2); }`, "overflow: "},
		{`BEGIN { print(1 - 0xffffffffffffffff); }`, "underflow: the result of these constants does not fit into 64 bits"},
		{`BEGIN { print(-0x8000000000000001); }`, "underflow: "},
		{`BEGIN { print(1 << 64); }`, "overflow: a constant is shifted by 64 bits, and has 64"},
		{`BEGIN { print(1 >> -1); }`, "overflow: a constant is shifted by -1 bits"},
		{`BEGIN { print((string)5); }`, "Cannot cast from 'int64' to 'string'"},
		{`BEGIN { print((string[2])"hello"); }`, "Cannot cast from 'string[6]' to 'string[2]'"},
		{`BEGIN { print(str($1, $x)); }`, "str() of a parameter expects a number above 0 that is known before"},
		{`BEGIN { @a = 1; if comptime (@a > 1) { print(1); } }`, "stdin:1:20-37: ERROR: Unable to resolve comptime expression\nBEGIN { @a = 1; if comptime (@a > 1) { print(1); } }\n                   ~~~~~~~~~~~~~~~~~"},
		{`BEGIN { $x = 0; print(comptime ($x + 1)); }`, "Unable to resolve comptime expression"},
		{`BEGIN { $s = "ab"; if comptime (sizeof($s) > 4) { print(1); } $s = "abcdefghij"; }`, "comptime condition depends on a type that is not final yet"},
		{`BEGIN { $s = "ab"; if comptime (sizeof($s) <= 4) { print(1); } else { print(2); } $s = "abcdefghij"; }`, "HINT: a later assignment makes a string or a value larger: declare it with its size, as let $x: string[16]"},
		{`BEGIN { let $a: uint8 = 1 << 10; }`, "1024 does not fit a variable of type 'uint8'"},
		{`BEGIN { let $a: int8 = 300 / 2; }`, "150 does not fit a variable of type 'int8'"},
		{`BEGIN { let $a: uint8 = 0x1ff & 0xf00; }`, "256 does not fit a variable of type 'uint8'"},
		{`BEGIN { print((string[1])"abc"); }`, "Cannot cast from 'string[4]' to 'string[1]'"},
		{`struct f { int a; } struct g { char c; struct f __attribute__((packed)) x; } BEGIN { }`, "packed or aligned is for the definition of a structure or a union"},
		{`enum e __attribute__((packed)) { A } BEGIN { }`, "HINT: write it where the members are, in braces"},
		{`BEGIN { @a[1] = 1; if (comptime true) { @a = 1; } }`, "@a used as a map without an explicit key"},
		{`BEGIN { print(*"a"); }`, "Can not dereference type 'string[2]'. It is not a pointer."},
		{`let @a = array(5); BEGIN { }`, "HINT: there are hash(ENTRIES) and lruhash(ENTRIES)"},
		{`interval:s:0 { }`, "interval: want a number above 0"},
		{`kprobe:0xffffffffffffffff+1 { }`, "kprobe:0xffffffffffffffff+1: there is no such address"},
		{`kprobe:vfs_read+0x { }`, "want FUNCTION+OFFSET"},
		{`BEGIN { print(1) `, "unexpected end of the script"},
		{`BEGIN { "a`, "string without end"},
		{`/* BEGIN { }`, "comment without end"},
		{``, "no probes in the script"},
		{`BEGIN { ` + strings.Repeat("(", 200) + `1` + strings.Repeat(")", 200) + ` }`, "nested too deep"},
		{`BEGIN { $t = (1, 2); print($t.2); }`, "Invalid tuple index: 2. Found 2 elements in tuple."},
		{`BEGIN { @a["` + strings.Repeat("x", 20000) + `"] = 1; }`, "the key of @a has 20008 bytes: at most 16896"},
		// Types.
		{`BEGIN { $x = ((struct fil *)0)->f_pos; }`, "stdin:1:16-26: ERROR: Cannot resolve unknown type \"struct fil\"\nBEGIN { $x = ((struct fil *)0)->f_pos; }\n               ~~~~~~~~~~\nHINT: did you mean struct file?"},
		{`BEGIN { $x = (foo_t *)0; }`, `Cannot resolve unknown type "foo_t"`},
		{`BEGIN { $x = (uint24)5; }`, "HINT: did you mean uint64?"},
		{`BEGIN { $x = ((struct file *)0)->f_pso; }`, "stdin:1:14-39: ERROR: Struct/union of type 'struct file' does not contain a field named 'f_pso'\nBEGIN { $x = ((struct file *)0)->f_pso; }\n             ~~~~~~~~~~~~~~~~~~~~~~~~~\nHINT: did you mean f_pos?"},
		{`BEGIN { $x = 5; print($x->foo); }`, "Can not access field 'foo' on expression of type 'int64'"},
		{`BEGIN { $x = ((struct file *)0)->f_path.mnt->root; }`, "Unknown struct/union: 'struct vfsmount'"},
		{`kprobe:vfs_read { print(args.cuont); }`, "HINT: did you mean count?"},
		{`kprobe:vfs_read { print(args.nothing); }`, "HINT: vfs_read(struct file *file, char *buf, size_t count, loff_t *pos) -> ssize_t"},
		{`kprobe:vfs_write { print(args.count); }`, "parameters of vfs_write are not known"},
		{`kprobe:vfs_read+4 { print(args.count); }`, "parameters are known at a function's entry and return only, not at vfs_read+4"},
		{`kprobe:vfs_read,kprobe:ksys_read { print(args.file); }`, "Can't find function parameter file"},
		{`kprobe:vfs_read,kprobe:kernel_clone { print(args.count); }`, "HINT: kernel_clone(struct kernel_clone_args *args) -> pid_t"},
		{`kprobe:odd_words { print(args.both); }`, "the parameter both of type 'struct pair' is not passed as a number"},
		{`kprobe:odd_words { print(args.x); }`, "the parameter x of type 'double' is not passed as a number"},
		{`kretprobe:odd_words { print(args.last); }`, "is passed on the stack, which is not there at the return"},
		{`tracepoint:sched:sched_switch { print(args); }`, "args of a tracepoint has no value of its own"},
		{`kprobe:jiffies { print(args); }`, "parameters of jiffies are not known"},
		{`kprobe:vfs_read, kprobe:get_dentry { print(args); }`, "vfs_read and get_dentry have different parameters"},
		{`BEGIN { @a[1] = 1; find(@a, 1, $y); }`, "Undefined or undeclared variable: $y"},
		{`BEGIN { @a[1] = 1; find(@a, 1, 2); }`, "find() expects a variable for the value"},
		{`BEGIN { let $y; @a = 1; find(@a, 1, $y); }`, "find() expects a map with explicit keys (non-scalar map)"},
		{`BEGIN { let $y; @a[1] = count(); find(@a, 1, $y); }`, "find() does not support a map of count()"},
		{`BEGIN { $y = "text"; @a[1] = 1; find(@a, 1, $y); }`, "Type mismatch for $y"},
		{`BEGIN { pton("1.2.3"); }`, "pton() expects an address of IPv4 or IPv6"},
		{`BEGIN { $a = "::1"; pton($a); }`, "pton() expects a string literal"},
		{`BEGIN { @s = stats(1); print(@s.sum); }`, "stats() has no field 'sum'"},
		{`BEGIN { $a = (a=1, b=2); $a = (a=1, c=2); }`, "Type mismatch for $a"},
		{`BEGIN { print(buf("a", 1) < buf("b", 1)); }`, "The < operator can not be used on buffers"},
		{`BEGIN { print(args.count); }`, "The args builtin can not be used with 'begin' probes"},
		{`BEGIN { $x = (struct file)5; }`, "HINT: write (struct file *)"},
		{`BEGIN { $x = (int8[3])(uint32)5; $y = (int8[])5; $z = (int32[])"abcd"; }`, "Could not determine size of the array"},
		{`BEGIN { $x = ((int8[8])5)[8]; }`, "the index 8 is out of bounds for array of size 8"},
		{`BEGIN { $x = 5; print($x[0]); }`, "The array index operator [] can only be used on arrays, pointers, and tuples, found int64."},
		{`BEGIN { $x = (void *)5; print($x[0]); }`, "on a pointer to an unsized type (void *)"},
		{`BEGIN { $x = (void *)5; print(*$x); }`, "Can not dereference a value of type 'void *'"},
		{`BEGIN { $x = (int32 *)5; $y = $x * 2; }`, "The * operator can not be used on expressions of types int32 *, int64"},
		{`BEGIN { $x = (int32 *)5; $x = (int16 *)5; }`, "trying to assign value of type 'int16 *' when variable already has a type 'int32 *'"},
		{`BEGIN { if ((1, 2) == (1, "a")) { } }`, "Type mismatch for '==': comparing (int64,int64) with (int64,string[2])"},
		{`BEGIN { if ((1, 2) < (1, 3)) { } }`, "The < operator can not be used on tuples"},
		{`BEGIN { print(offsetof(struct file, f_pso)); }`, "'struct file' has no field named 'f_pso'"},
		{`BEGIN { print(offsetof(struct file, three)); }`, "'three' is a bit field"},
		{`BEGIN { print(sizeof(void)); }`, "there is no value of type 'void'"},
		{`struct a { int x; }; struct a { int y; }; BEGIN { }`, "redefinition of 'struct a'"},
		{`BEGIN { $r = (count=1, b=2); print($r.cuont); }`, "stdin:1:36-44: ERROR: Record does not contain a field named 'cuont'\nBEGIN { $r = (count=1, b=2); print($r.cuont); }\n                                   ~~~~~~~~\nHINT: did you mean count?"},
		{`BEGIN { $r = (a=1, a=2); }`, "a record has two fields 'a'"},
		{`BEGIN { $r = (a=1); $r = (b=1); }`, "trying to assign value of type 'record { .b = int64 }' when variable already has a type 'record { .a = int64 }'"},
		{`BEGIN { $r = (a=1); $r = (1, 2); }`, "trying to assign value of type '(int64,int64)'"},
		{`BEGIN { $x = 1; print(&($x + 1)); }`, "only variables, maps and values in the guest's memory have an address"},
		{`BEGIN { let $x; $y = &$x; }`, `Undefined or undeclared variable: $x`},
		{`BEGIN { $a = (uint8)1; $b = "x"; $p = &$a; $p = &$b; }`, `trying to assign value of type 'string[2] *' when variable already has a type 'uint8 *'`},
		{`BEGIN { $x = &@m; }`, `Undefined map: @m`},
		{`BEGIN { @m = 1; print(*(&@m)); }`, `Can not dereference a value of type 'void *'`},
		{`macro add2($x) { $x + 1 } macro add1($x) { add2($x) } BEGIN { $a = "s"; add1($a); }`,
			"stdin:1:18-24: ERROR: Type mismatch for '+': comparing or combining 'string[2]' with 'int64'\nmacro add2($x) { $x + 1 } macro add1($x) { add2($x) } BEGIN { $a = \"s\"; add1($a); }\n                 ~~~~~~\n" +
				"stdin:1:44-52: ERROR: expanded from\nmacro add2($x) { $x + 1 } macro add1($x) { add2($x) } BEGIN { $a = \"s\"; add1($a); }\n                                           ~~~~~~~~\n" +
				"stdin:1:73-81: ERROR: expanded from\nmacro add2($x) { $x + 1 } macro add1($x) { add2($x) } BEGIN { $a = \"s\"; add1($a); }\n                                                                        ~~~~~~~~"},
		{`macro f($x) { $y = $x.a; } BEGIN { $r = (ab=1); f($r); }`, "~~~~\nstdin:1:49-54: ERROR: expanded from\nmacro f($x) { $y = $x.a; } BEGIN { $r = (ab=1); f($r); }\n                                                ~~~~~\nHINT: did you mean ab?"},
		{`BEGIN { $t = (1, 2); print(&$t.0); }`, "HINT: as &$x, or &args.file->f_path"},
		{`kprobe:vfs_read { print(&args.file->three); }`, "a bit field has no address"},
		{`kprobe:vfs_read { print(container_of(arg0, 5, x)); }`, "container_of() takes a structure's type"},
		{`struct a { int x; char x; }; BEGIN { }`, "stdin:1:24-25: ERROR: duplicate member 'x'"},
		{`struct a { int x : 33; }; BEGIN { }`, "a bit field has a width of at most its type's"},
		{`struct a { struct a x; }; BEGIN { }`, `Cannot resolve unknown type "struct a"`},
		{`struct a { int x[5000]; }; BEGIN { $x = *(struct a *)0; }`, "a value of type 'struct a' has 20000 bytes: at most 4096"},
		{`struct a { int x[65536][65536]; }; BEGIN { }`, "member 'x' has a type without a size"},
		{"#define X(a) 5\nBEGIN { }", "HINT: write macro X(x) { x }"},
		{"#define X 5 6\nBEGIN { }", "#define of more than one expression is not supported"},
		{"#define X (5\n)\nBEGIN { }", "stdin:1:13-14: ERROR: syntax error, unexpected end of the script"},
		{"#pragma once\nBEGIN { }", "#pragma is not supported"},
		{"#if A == 5\nBEGIN { }", "HINT: write #ifdef NAME"},
		{"#ifdef A\nBEGIN { }", "stdin:1:1-9: ERROR: #if without #endif"},
		{"#ifndef A\nBEGIN { }", "stdin:1:1-10: ERROR: #if without #endif"},
		{"BEGIN { }\n#endif", "#endif without #if"},
		{"BEGIN { print(X); }\n#define X 5\n#define X 6", "redefinition of 'X'"},
		{`BEGIN { let $x: uint16 = "a"; }`, "Type mismatch for $x"},
		{`BEGIN { let $x: int32[] = 5; }`, "a variable of type 'int32[0]' is not supported"},
		// Scripts that would take a long time, or much memory.
		{`BEGIN { unroll(100) { unroll(100) { unroll(100) { unroll(100) { } } } } }`, "the program of this probe has more than 32768 instructions"},
		{`BEGIN { unroll(100) { unroll(100) { @++; @a[1]++; } } }`, "the program of this probe has more than 32768 instructions"},
		{`BEGIN { $a = (1, 2); ` + doubleTuples(40) + ` }`, "a tuple of 32768 bytes: at most 20480"},
		{`config = { max_strlen = 400 } BEGIN { if (` + strings.Repeat(`(@s == @t && @s != "x") || `, 900) + `1) { @s = str(0, 400); @t = str(0, 400); } }`, "the program of this probe has more than 32768 instructions"},
		{strings.Repeat("BEGIN { }\n", 65), "more than 64 of BEGIN, END and intervals"},
	} {
		_, err := Compile(c[0], target, Options{CPUs: 1})
		if err == nil || !strings.Contains(err.Error(), c[1]) {
			t.Errorf("%s\nerror %v\nwant %s", c[0], err, c[1])
		}
	}
	for name := range absent {
		if calls[name].most > 0 || builtins[name].typ.Kind != None {
			t.Errorf("%s is said to be absent, and is there", name)
		}
	}
}

// TestUnsafeRefused: what scripts may do with Unsafe, and not like this.
func TestUnsafeRefused(t *testing.T) {
	for _, c := range [][2]string{
		{`BEGIN { setreg("ax", 1); }`, "setreg() can not be used with 'begin' probes"},
		{`profile:hz:9 { setreg("ax", 1); }`, "setreg() can not be used with 'profile' probes"},
		{`watchpoint:jiffies:8:w { setreg("ax", 1); }`, "setreg() can not be used with 'watchpoint' probes"},
		{`kprobe:vfs_read { setreg("sp", 1); }`, "setreg() cannot set 'sp'\nkprobe:vfs_read { setreg(\"sp\", 1); }\n                         ~~~~\nHINT: the general registers except sp, and flags; override(N) leaves a function"},
		{`kprobe:vfs_read { setreg("ip", 1); }`, "setreg() cannot set 'ip'"},
		{`kprobe:vfs_read { setreg("cs", 1); }`, "setreg() cannot set 'cs'"},
		{`kprobe:vfs_read { setreg("orig_ax", 1); }`, "setreg() cannot set 'orig_ax'"},
		{`kprobe:vfs_read { setreg("r80", 1); }`, "'r80' is not a valid register on this architecture (x86_64)\nkprobe:vfs_read { setreg(\"r80\", 1); }\n                         ~~~~~\nHINT: did you mean r10?"},
		{`kprobe:vfs_read { setreg(arg0, 1); }`, "setreg() expects a string literal"},
		{`kprobe:vfs_read { setreg("ax", comm); }`, "setreg() only supports number arguments (string[16] provided)"},
		{`kprobe:vfs_read { setreg("ax"); }`, "setreg() requires 2 arguments (1 provided)"},
		{`kprobe:vfs_read { print(setreg("ax", 1)); }`, "setreg() should not be used in an expression"},
		{`interval:s:1 { stop(); }`, "stop() can not be used with 'interval' probes"},
		{`kprobe:vfs_read { stop("one"); }`, "stop() expects nothing, or \"all\"\nkprobe:vfs_read { stop(\"one\"); }\n                       ~~~~~\nHINT: stop() stops the vCPU of the hit, stop(\"all\") all of them"},
		{`interval:s:1 { poke(1, "x"); }`, "poke() can not be used with 'interval' probes"},
		{`kprobe:vfs_read { poke(arg0, 5); }`, "poke() of a number of no certain size\nkprobe:vfs_read { poke(arg0, 5); }\n                             ~\nHINT: write (uint32), or how wide it is, before it"},
		{`kprobe:vfs_read { poke(arg0, -5); }`, "poke() of a number of no certain size"},
		{`kprobe:vfs_read { poke("x", "y"); }`, "poke() only supports number arguments (string[2] provided)"},
		{`kprobe:vfs_read { poke(arg0, (1, 2)); }`, "poke() takes a number, a string, a buffer, an array or a structure ((int64,int64) provided)"},
		{`kprobe:vfs_read { poke(arg0, kstack); }`, "poke() takes a number, a string, a buffer, an array or a structure (kstack provided)"},
		{`kretprobe:vfs_read { override(1); }`, "override() can not be used with 'kretprobe:vfs_read' probes"},
	} {
		if _, err := Compile(c[0], target, Options{CPUs: 1, Unsafe: true}); err == nil || !strings.Contains(err.Error(), c[1]) {
			t.Errorf("%s: error %v, want %s", c[0], err, c[1])
		}
	}
}

// typeless is a guest whose types are not known.
type typeless struct{ fakeTarget }

func (typeless) Types() Types { return nil }

// TestInclude: headers are left out where the guest's types are known, and else refused.
func TestInclude(t *testing.T) {
	const text = "#include <linux/fs.h>\n#include \"own.h\"\nkprobe:vfs_read { print(((struct file *)arg0)->f_pos); }"
	if _, err := Compile(text, target, Options{CPUs: 1}); err != nil {
		t.Error(err)
	}
	want := "stdin:1:1-22: ERROR: #include is not supported\n#include <linux/fs.h>\n~~~~~~~~~~~~~~~~~~~~~\nHINT: the guest's types are not known: define the needed types in the script, as struct NAME { int a; }"
	if _, err := Compile(text, typeless{target}, Options{CPUs: 1}); err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
	if _, err := Compile("#pragma once\nBEGIN { }", target, Options{CPUs: 1}); err == nil || !strings.Contains(err.Error(), "#pragma is not supported") {
		t.Errorf("error %v", err)
	}
}

// TestLongLines: for a long line the part around the place is shown, in whole
// characters.
func TestLongLines(t *testing.T) {
	pad := strings.Repeat("é", 200)
	for _, c := range [][2]string{
		{`BEGIN { print("` + pad + `"); print(fake); print("` + pad + `"); }`, "stdin:1:426-430: ERROR: Unknown identifier: 'fake'\n..." + pad[:70] + `"); print(fake); print("` + pad[:146] + "...\n" + strings.Repeat(" ", 83-35) + "~~~~"},
		{`BEGIN { print(fake); print("` + pad + `"); }`, "\nBEGIN { print(fake); print(\"" + pad[:212] + "...\n" + strings.Repeat(" ", 14) + "~~~~"},
		{`BEGIN { print("` + pad + `"); print(fake); }`, `"); print(fake); }` + "\n"},
		{"BEGIN {\r\n fake;\r\n}", "\n fake;\n ~~~~"},
		{"BEGIN { é }", "invalid character 'é'\nBEGIN { é }\n        ~"},
		{"BEGIN { \xff }", "invalid character '\ufffd'"},
		{strings.Repeat("\xa1", 500), "invalid character '\ufffd'"},
		{"BEGIN { print(1); " + strings.Repeat("\xa1", 500), "invalid character '\ufffd'"},
		{"BEGIN { " + assignMaps(80) + "}", "the program of this probe has 80 maps, with those that it works with: at most 64\n"},
	} {
		_, err := Compile(c[0], target, Options{CPUs: 1})
		if err == nil || !strings.Contains(err.Error(), c[1]) {
			t.Errorf("%.40s: %v, want %s", c[0], err, c[1])
		}
		var e *Error
		if errors.As(err, &e) && e.Width > 0 && (e.Mark+e.Width > len(e.Source) || len(e.Source) > maxShown+2*len(cut)) {
			t.Errorf("%.40s: %d bytes from %d on of %d", c[0], e.Width, e.Mark, len(e.Source))
		}
	}
}

// assignMaps assigns to n maps.
func assignMaps(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "@m%d = 1; ", i)
	}
	return b.String()
}
