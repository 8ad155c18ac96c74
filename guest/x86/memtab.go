package x86

// memTable has the number of bytes of memory of each instruction's explicit operand,
// and the access to them: a list of
//
//	op[-op][/reg[-reg]] size [access]
//
// in hexadecimal, without the blanks; /reg is for opcodes whose operation ModRM.reg
// selects. The sizes are those in the instructions' descriptions in SDM Vol. 2 and
// APM Vol. 3 to 5:
//
//	b w d q t o y z  1 2 4 8 10 16 32 64 bytes
//	v  operand size        s  stack operand size      m  4, or 8 with W
//	p  far pointer         g  8, or 16 with W         c  mask register
//	n  environment of fstenv     f  state of fsave     l  512
//	x h k e  vector length, a half, a quarter, an eighth
//	i  half the vector length, or all of it with W
//	u  8 with 128 bits, else the vector length
//	?  depends on more than the instruction
//
// and the access is a read, or = for a write, + for both, ! for none: the address is
// computed, but nothing can fault. clflush and clwb count as reads of a byte, because
// they are checked as such.
var memTable = []struct {
	enc  Encoding
	m    Map
	pp   uint8
	list string
}{
	// All prefixes of the legacy maps, then the exceptions.
	{Legacy, Map0, anyPP, "00b+ 01v+ 02b 03v 08b+ 09v+ 0ab 0bv 10b+ 11v+ 12b 13v 18b+ 19v+ 1ab 1bv 20b+ 21v+ 22b 23v " +
		"28b+ 29v+ 2ab 2bv 30b+ 31v+ 32b 33v 38b 39v 3ab 3bv 63d 69v 6bv 80/0-6b+ 80/7b 81/0-6v+ 81/7v 83/0-6v+ 83/7v " +
		"84b 85v 86b+ 87v+ 88b= 89v= 8ab 8bv 8cw= 8dv! 8ew 8f/0s= a0b a1v a2b= a3v= c0b+ c1v+ c6/0b= c7/0v= d0b+ d1v+ d2b+ d3v+ " +
		"d8d d9/0d d9/2-3d= d9/4n d9/5w d9/6n= d9/7w= dad db/0d db/1-3d= db/5t db/7t= dcq dd/0q dd/1-3q= dd/4f dd/6f= dd/7w= " +
		"dew df/0w df/1-3w= df/4t df/5q df/6t= df/7q= f6/0-1b f6/2-3b+ f6/4-7b f7/0-1v f7/2-3v+ f7/4-7v fe/0-1b+ " +
		"ff/0-1v+ ff/2s ff/3p ff/4s ff/5p ff/6s"},
	{Legacy, Map0F, anyPP, "00/0-1w= 00/2-6w 01/0-1t= 01/2-3t 01/4w= 01/6w 01/7b! 02-03w 0db! 18-19b! 1c-1fb! 40-4fv 90-9fb= " +
		"a3? a4-a5v+ ab?+ ac-adv+ afv b0b+ b1v+ b2p b3?+ b4-b5p b6b b7w ba/4v ba/5-7v+ bb?+ beb bfw c0b+ c1v+ c7/1g+"},
	{Legacy, Map0F, ppNone, "0fq 10o 11o= 12q 13q= 14-15o 16q 17q= 28o 29o= 2aq 2bo= 2c-2dq 2e-2fd 51-59o 5aq 5b-5fo 60-62d " +
		"63-6bq 6em 6fq 70q 74-76q 78q= 79q 7em= 7fq= ae/0l= ae/1l ae/2d ae/3d= ae/4?= ae/5? ae/6?= ae/7b bc-bdv c2o c3m= " +
		"c4w c6o c7/3? c7/4-5?= c7/6q c7/7q= d1-d5q d8-dfq e0-e5q e7q= e8-efq f1-f6q f8-feq"},
	{Legacy, Map0F, ppOpSize, "10o 11o= 12q 13q= 14-15o 16q 17q= 28o 29o= 2aq 2bo= 2c-2do 2e-2fq 51o 54-5fo 60-6do 6em 6fo 70o " +
		"74-76o 7c-7do 7em= 7fo= ae/6-7b bc-bdv c2o c4w c6o c7/6q d0-d5o d6q= d8-e6o e7o= e8-efo f1-f6o f8-feo"},
	{Legacy, Map0F, ppRep, "01/5q+ 10d 11d= 12o 16o 2am 2bd= 2c-2dd 51-53d 58-5ad 5bo 5c-5fd 6fo 70o 7eq 7fo= ae/4m ae/6q+ b8v " +
		"bc-bdv c2d c7/6q e6q"},
	{Legacy, Map0F, ppRepNE, "10q 11q= 12q 2am 2bq= 2c-2dq 51q 58-5aq 5c-5fq 70o 7c-7do c2q d0o e6o f0o"},
	{Legacy, Map0F38, ppNone, "00-0bq 1c-1eq c8-cdo f0v f1v= f6m= f9m= fcm+"},
	{Legacy, Map0F38, ppOpSize, "00-0bo 10o 14-15o 17o 1c-1eo 20q 21d 22w 23q 24d 25q 28-2bo 30q 31d 32w 33q 34d 35q 37-41o " +
		"80-82o cfo db-dfo f0v f1v= f5m= f6m f8z fcm+"},
	{Legacy, Map0F38, ppRep, "d8? dc-df? f6m f8z fcm+"},
	{Legacy, Map0F38, ppRepNE, "f0b f1v f8z fcm+"},
	{Legacy, Map0F3A, ppNone, "0fq cco"},
	{Legacy, Map0F3A, ppOpSize, "08-09o 0ad 0bq 0c-0fo 14b= 15w= 16m= 17d= 20b 21d 22m 40-42o 44o 60-63o ce-cfo dfo"},

	{VEX, Map0F, ppNone, "ae/2d ae/3d= 90c 91c= 10x 11x= 12q 13q= 14-15x 16q 17q= 28x 29x= 2bx= 2e-2fd 51-59x 5ah 5b-5fx c2x c6x"},
	{VEX, Map0F, ppOpSize, "90c 91c= 10x 11x= 12q 13q= 14-15x 16q 17q= 28x 29x= 2bx= 2e-2fq 51x 54-6dx 6em 6f-70x 74-76x 7c-7dx 7em= 7fx= " +
		"c2x c4w c6x d0x d1-d3o d4-d5x d6q= d8-e0x e1-e2o e3-e6x e7x= e8-efx f1-f3o f4-f6x f8-fex"},
	{VEX, Map0F, ppRep, "10d 11d= 12x 16x 2am 2c-2dd 51-53d 58-5ad 5bx 5c-5fd 6f-70x 7eq 7fx= c2d e6h"},
	{VEX, Map0F, ppRepNE, "10q 11q= 12u 2am 2c-2dq 51q 58-5aq 5c-5fq 70x 7c-7dx c2q d0x e6x f0x"},
	{VEX, Map0F38, ppNone, "49/0z 50-51x b0x f2-f3m f5m f7m"},
	{VEX, Map0F38, ppOpSize, "49/0z= 00-0fx 13h 16y 17x 18d 19q 1ao 1c-1ex 20h 21k 22e 23h 24k 25h 28-2dx 2e-2fx= 30h 31k 32e 33h 34k 35h " +
		"36y 37-40x 41o 45-47x 50-53x 58d 59q 5ao 78b 79w 8cx 8ex= 90-93m 96-98x 99m 9ax 9bm 9cx 9dm 9ex 9fm " +
		"a6-a8x a9m aax abm acx adm aex afm b0x b1w b4-b8x b9m bax bbm bcx bdm bex bfm cfx dbo dc-dfx e0-efm+ " +
		"f7m"},
	{VEX, Map0F38, ppRep, "50-51x 72x b0x b1w f5m f7m"},
	{VEX, Map0F38, ppRepNE, "50-51x b0x f5-f7m"},
	{VEX, Map0F3A, ppOpSize, "00-01y 02x 04-05x 06y 08-09x 0ad 0bq 0c-0fx 14b= 15w= 16m= 17d= 18o 19o= 1dh= 20b 21d 22m 38o 39o= " +
		"40x 41o 42x 44x 46y 48-4cx 5c-5fx 60-63o 68-69x 6ad 6bq 6c-6dx 6ed 6fq 78-79x 7ad 7bq 7c-7dx 7ed 7fq " +
		"ce-cfx dfo"},
	{VEX, Map0F3A, ppRepNE, "f0m"},
	{EVEX, Map0F, ppNone, "10x 11x= 12q 13q= 14-15x 16q 17q= 28x 29x= 2bx= 2e-2fd 51x 54-59x 5ah 5b-5fx 78-79x c2x c6x"},
	{EVEX, Map0F, ppOpSize, "10x 11x= 12q 13q= 14-15x 16q 17q= 28x 29x= 2bx= 2e-2fq 51x 54-6dx 6em 6f-76x 78-7bi 7em= 7fx= c2x " +
		"c4w c6x d1-d3o d4-d5x d6q= d8-e0x e1-e2o e3-e6x e7x= e8-efx f1-f3o f4-f6x f8-fex"},
	{EVEX, Map0F, ppRep, "10d 11d= 12x 16x 2am 2c-2dd 51d 58-5ad 5bx 5c-5fd 6f-70x 78-79d 7ai 7bm 7eq 7fx= c2d e6i"},
	{EVEX, Map0F, ppRepNE, "10q 11q= 12u 2am 2c-2dq 51q 58-5aq 5c-5fq 6f-70x 78-79q 7ax 7bm 7fx= c2q e6x"},
	{EVEX, Map0F38, ppNone, "4ex 50-51x"},
	{EVEX, Map0F38, ppOpSize, "00x 04x 0b-0dx 10-12x 13h 14-16x 18d 19q 1ao 1by 1c-1fx 20h 21k 22e 23h 24k 25h 26-2cx 2dm 30h 31k " +
		"32e 33h 34k 35h 36-40x 42x 43m 44-47x 4cx 4dm 4ex 4fm 50-55x 58d 59q 5ao 5by 62x 63x= 64-66x 70-73x " +
		"75-77x 78b 79w 7d-7fx 83x 88-89x 8a-8bx= 8dx 8fx 90-93m 96-98x 99m 9ax 9bm 9cx 9dm 9ex 9fm a0-a3m= " +
		"a6-a8x a9m aax abm acx adm aex afm b4-b8x b9m bax bbm bcx bdm bex bfm c4x c6-c7m! c8x cax cbm ccx " +
		"cdm cfx dc-dfx"},
	{EVEX, Map0F38, ppRep, "10h= 11k= 12e= 13h= 14k= 15h= 20h= 21k= 22e= 23h= 24k= 25h= 26-27x 29x 30h= 31k= 32e= 33h= 34k= 35h= " +
		"39x 4ex 50-52x 72x"},
	{EVEX, Map0F38, ppRepNE, "4ex 50-51x 52-53o 68x 72x 9a-9bo aa-abo"},
	{EVEX, Map0F3A, ppNone, "08x 0aw 26x 27w 42x 56x 57w 66x 67w 70x 72x c2x"},
	{EVEX, Map0F3A, ppOpSize, "00-01x 03-05x 08-09x 0ad 0bq 0fx 14b= 15w= 16m= 17d= 18o 19o= 1ay 1by= 1dh= 1e-1fx 20b 21d 22m 23x " +
		"25-26x 27m 38o 39o= 3ay 3by= 3e-3fx 42-44x 50x 51m 54x 55m 56x 57m 66x 67m 70-73x ce-cfx"},
	{EVEX, Map0F3A, ppRep, "42x 70x 72x c2w"},
	{EVEX, Map0F3A, ppRepNE, "42x 70x 72x"},
	{EVEX, Map5, ppNone, "1dd 2e-2fw 51x 58-59x 5ak 5b-5fx 78-79h 7c-7dx"},
	{EVEX, Map5, ppOpSize, "1dx 5ax 5bh 6ew 78-7bk 7c-7dx 7ew="},
	{EVEX, Map5, ppRep, "10w 11w= 2am 2c-2dw 51w 58-5aw 5bh 5c-5fw 78-79w 7bm 7dx"},
	{EVEX, Map5, ppRepNE, "5aq 7ax 7dx"},
	{EVEX, Map6, ppNone, "13w"},
	{EVEX, Map6, ppOpSize, "13h 2cx 2dw 42x 43w 4cx 4dw 4ex 4fw 96-98x 99w 9ax 9bw 9cx 9dw 9ex 9fw a6-a8x a9w aax abw acx adw " +
		"aex afw b6-b8x b9w bax bbw bcx bdw bex bfw"},
	{EVEX, Map6, ppRep, "56x 57d d6x d7d"},
	{EVEX, Map6, ppRepNE, "56x 57d d6x d7d"},
	{XOP, MapXOP8, ppNone, "85-87o 8e-8fo 95-97o 9e-9fo a2x a3o a6o b6o c0-c3o cc-cfo ec-efo"},
	{XOP, MapXOP9, ppNone, "01-02m 80-81x 82d 83q 90-9bo c1-c3o c6-c7o cbo d1-d3o d6-d7o dbo e1-e3o"},
	{XOP, MapXOPA, ppNone, "10m 12d"},
}
