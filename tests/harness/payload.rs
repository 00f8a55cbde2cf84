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

/// [`blob`] without the bytes that go back in a line.
#[must_use]
pub fn forward_blob(rank: u32, bytes: usize) -> Vec<u8> {
    let mut blob = blob(rank, bytes);
    blob.retain(|byte| !matches!(byte, b'\r' | 0x08 | 0x1b));
    blob
}

/// Base64 with padding.
#[must_use]
pub fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let byte = |at: usize| u32::from(chunk.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for letter in 0..4 {
            let at = usize::try_from(bits >> (18 - 6 * letter) & 63).expect("below 64");
            text.push(if letter > chunk.len() { '=' } else { char::from(LETTERS[at]) });
        }
    }
    text
}
