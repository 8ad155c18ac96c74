package script

import "testing"

// TestFound: what a predicate has found is not looked up again, but where it may have changed.
func TestFound(t *testing.T) {
	const begin = `BEGIN { @m[1, "dd"] = 5; @m[2, "dd"] = 6; } `
	for script, want := range map[string]string{
		`kprobe:vfs_read /has_key(@m, (arg0, comm))/ { print(1); clear(@m); exit(); }`:                                                                                          "1\n",
		`kprobe:vfs_read /arg2 == 1 && has_key(@m, (arg0, comm)) && @m[arg0, comm] == 5/ { print((@m[arg0, comm], @m[arg1, comm])); }`:                                          "(5, 6)\n",
		`kprobe:vfs_read /has_key(@m, (arg0, comm)) && delete(@m, (arg0, comm))/ { print(@m[arg0, comm]); }`:                                                                    "0\n",
		`kprobe:vfs_read /has_key(@m, (arg0, comm))/ { $a = @m[arg0, comm]; delete(@m, (arg0, comm)); print(($a, @m[arg0, comm])); }`:                                           "(5, 0)\n",
		`kprobe:vfs_read /arg2 == 1 && has_key(@m, (arg0, comm))/ { @m[arg0, comm] += 2; $a = @m[arg0, comm]; @m[arg0, comm]++; print(($a, @m[arg0, comm])); }`:                 "(7, 8)\n",
		`kprobe:vfs_read /arg2 == 1 && has_key(@m, (arg0, comm))/ { if (arg1 == 2) { @m[arg0, comm] = 1; } print(@m[arg0, comm]); }`:                                            "1\n",
		`kprobe:vfs_read /has_key(@m, (arg0, comm))/ { $i = 0; while ($i < 2) { print(@m[arg0, comm]); delete(@m, (arg0, comm)); $i++; } }`:                                     "5\n0\n",
		`kprobe:vfs_read /arg2 == 1 && has_key(@m, (arg0, comm))/ { unroll(2) { print(@m[arg0, comm]); @m[arg0, comm] = 3; } }`:                                                 "5\n3\n",
		`kprobe:vfs_read /arg2 == 1 && has_key(@m, (arg0, comm))/ { for ($kv : @m) { if ($kv.1 == 6) { print(@m[1, "dd"] + @m[arg0, comm]); } } }`:                              "10\n",
		`kprobe:vfs_read /arg2 == 1 && (has_key(@m, (9, comm)) || has_key(@m, (arg0, comm)))/ { print((@m[9, comm], @m[arg0, comm])); }`:                                        "(0, 5)\n",
		`kprobe:vfs_read /arg2 == 1 && has_key(@m, (arg0, comm))/ { delete(@m, (arg0, comm)); } kprobe:vfs_read /arg2 == 100 && !has_key(@m, (arg0, comm))/ { print("gone"); }`: "gone\n",
	} {
		r, err := runScript(t, begin+script+` END { clear(@m); }`, nil, false, 0, read4()...)
		if err != nil {
			t.Errorf("%s: %v", script, err)
			continue
		}
		if r.out != want+"\n\n" || r.warnings != "" {
			t.Errorf("%s:\nprinted %q, want %q; warnings %q", script, r.out, want, r.warnings)
		}
	}
}
