/* A second scope, for a name that suite.S has as well. */
	.text
	.p2align 4, 0xcc
	.type	name_show, @function
name_show:
	movl	$2, %eax
	ret
	.size	name_show, . - name_show
