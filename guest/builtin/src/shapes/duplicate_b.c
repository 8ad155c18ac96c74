/*
 * One of two files with a static function called mix_step: the name alone does
 * not say which one is meant.
 */
#include "shapes.h"

PROBED static u64 mix_step(u64 v)
{
	return (v ^ v >> 11) * 5;
}

PROBED u64 SHAPE(second_mixer)(u64 a)
{
	return mix_step(a) + 1;
}
