// Types and parameters of Rust.
#![no_std]
#![no_main]
use core::arch::asm;
#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! { loop {} }
#[derive(Clone, Copy)]
#[repr(u8)]
pub enum Color { Red = 1, Green = 200 }
pub struct Point { pub x: i32, pub y: i64 }
pub enum Shape { Dot, Circle(u32), Rect { w: u16, h: u64 } }
pub struct List<'a> { pub head: Option<&'a Point>, pub count: usize, pub name: &'static str, pub pair: (u8, i32), pub f: fn(i32) -> i32, pub c: char }
#[no_mangle]
#[inline(never)]
fn structures(l: &List, s: &Shape, o: Option<u32>, p: (u64, u8), name: &str, n: u64) -> u64 {
    unsafe { asm!("", in("rax") l, in("rcx") s) };
    n + o.unwrap_or(3) as u64 + p.0 + name.len() as u64
}
#[no_mangle]
#[inline(never)]
fn numbers(l: &List, c: Color, a: u8, b: i16, d: usize, e: u64, f: u64, g: u32) -> u64 {
    unsafe { asm!("", in("rax") l, in("rcx") d) };
    c as u64 + a as u64 + b as u64 + e + f + g as u64
}
fn id(x: i32) -> i32 { x }
static POINT: Point = Point { x: 5, y: -6 };
#[no_mangle]
pub extern "C" fn _start() -> ! {
    let l = List { head: Some(&POINT), count: 3, name: "abc", pair: (1, -2), f: id, c: 'x' };
    loop {
        structures(&l, &Shape::Rect { w: 1, h: 2 }, Some(4), (8, 9), "hello", 1);
        structures(&l, &Shape::Circle(4), None, (8, 9), "hello", 2);
        structures(&l, &Shape::Dot, None, (8, 9), "hello", 3);
        numbers(&l, Color::Green, 1, 2, 3, 4, 5, 6);
        numbers(&l, Color::Red, 1, 2, 3, 4, 5, 7);
    }
}
