//! What workers write in bulk: made by the worker fixture, and known to the test. Pure.

use std::fmt::Write;

/// A line of a flood, with its newline: of any length up to two hundred and some bytes, so that pieces of pipes and
/// lines meet everywhere.
#[must_use]
pub fn flood_line(rank: u32, line: usize) -> String {
    let width = line * 7919 % 200;
    format!("flood rank={rank} line={line} width={width} [{}]\n", "x".repeat(width))
}

/// Text of so many bytes without a newline, in which no part is like another.
#[must_use]
pub fn long_line(rank: u32, bytes: usize) -> String {
    let filler = "_".repeat(1000);
    let mut text = format!("long rank={rank}");
    let mut number = 0;
    while text.len() < bytes {
        // Writing to a string cannot fail.
        let _ = write!(text, " {number} {filler}");
        number += 1;
    }
    text.truncate(bytes);
    text
}

/// So many bytes of every kind: newlines, carriage returns, no UTF-8.
#[must_use]
pub fn blob(rank: u32, bytes: usize) -> Vec<u8> {
    let mut state = u64::from(rank) + 1;
    let byte = std::iter::repeat_with(|| {
        // Knuth's MMIX generator.
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    });
    byte.take(bytes).collect()
}
