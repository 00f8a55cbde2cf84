//! The arithmetic of each element type and each reduce operation.

use bytemuck::Pod;
use half::{bf16, f16};

/// Elements of a block: 128 bytes of `f32`, four vector registers of AVX2.
pub(super) const LANES: usize = 32;

/// An element type. It is computed as `Wide`: `f32` for the short floats, else the type itself.
pub(super) trait Number: Pod {
    type Wide: Value;
    fn widen<L: Level>(block: [Self; LANES]) -> [Self::Wide; LANES];
    fn narrow<L: Level>(block: [Self::Wide; LANES]) -> [Self; LANES];
    /// Integers are rounded towards zero.
    fn divided(value: Self::Wide, count: u32) -> Self::Wide;
}

/// A type of intermediate values.
pub(super) trait Value: Copy + PartialOrd {
    fn plus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
    fn is_nan(self) -> bool;
}

/// A reduction of two values; `total` is that of the previous ranks.
pub(super) trait Operator {
    fn combine<V: Value>(total: V, next: V) -> V;
}

pub(super) struct Sum;
pub(super) struct Product;
pub(super) struct Largest;
pub(super) struct Smallest;

impl Operator for Sum {
    #[inline(always)]
    fn combine<V: Value>(total: V, next: V) -> V {
        total.plus(next)
    }
}

impl Operator for Product {
    #[inline(always)]
    fn combine<V: Value>(total: V, next: V) -> V {
        total.times(next)
    }
}

/// A total that is NaN stays, since no value is larger. Of two zeros with different signs the first stays.
impl Operator for Largest {
    #[inline(always)]
    fn combine<V: Value>(total: V, next: V) -> V {
        if next > total || next.is_nan() { next } else { total }
    }
}

impl Operator for Smallest {
    #[inline(always)]
    fn combine<V: Value>(total: V, next: V) -> V {
        if next < total || next.is_nan() { next } else { total }
    }
}

macro_rules! float {
    ($type:ty) => {
        impl Value for $type {
            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                self + other
            }
            #[inline(always)]
            fn times(self, other: Self) -> Self {
                self * other
            }
            #[inline(always)]
            fn is_nan(self) -> bool {
                self.is_nan()
            }
        }

        impl Number for $type {
            type Wide = Self;
            #[inline(always)]
            fn widen<L: Level>(block: [Self; LANES]) -> [Self; LANES] {
                block
            }
            #[inline(always)]
            fn narrow<L: Level>(block: [Self; LANES]) -> [Self; LANES] {
                block
            }
            #[inline(always)]
            fn divided(value: Self, count: u32) -> Self {
                value / count as Self
            }
        }
    };
}

macro_rules! integer {
    ($type:ty, $divided:expr) => {
        impl Value for $type {
            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            #[inline(always)]
            fn times(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
            #[inline(always)]
            fn is_nan(self) -> bool {
                false
            }
        }

        impl Number for $type {
            type Wide = Self;
            #[inline(always)]
            fn widen<L: Level>(block: [Self; LANES]) -> [Self; LANES] {
                block
            }
            #[inline(always)]
            fn narrow<L: Level>(block: [Self; LANES]) -> [Self; LANES] {
                block
            }
            #[inline(always)]
            fn divided(value: Self, count: u32) -> Self {
                $divided(value, count)
            }
        }
    };
}

float!(f32);
float!(f64);
// The sum wraps around, as NCCL's does, so it fits the type. Processors divide only vectors of floats, and
// the result is exact here: a quotient with a fraction is further from an integer than the rounding error.
integer!(i32, |value, count| (f64::from(value) / f64::from(count)) as i32);
integer!(i64, |value, count| value / i64::from(count));
integer!(u8, |value, count| (f32::from(value) / count as f32) as u8);

impl Number for bf16 {
    type Wide = f32;
    #[inline(always)]
    fn widen<L: Level>(block: [Self; LANES]) -> [f32; LANES] {
        block.map(|value| f32::from_bits(u32::from(value.to_bits()) << 16))
    }
    #[inline(always)]
    fn narrow<L: Level>(block: [f32; LANES]) -> [Self; LANES] {
        block.map(|value| Self::from_bits(f32_to_bf16_bits(value)))
    }
    #[inline(always)]
    fn divided(value: f32, count: u32) -> f32 {
        value / count as f32
    }
}

impl Number for f16 {
    type Wide = f32;
    #[inline(always)]
    fn widen<L: Level>(block: [Self; LANES]) -> [f32; LANES] {
        L::from_f16(block)
    }
    #[inline(always)]
    fn narrow<L: Level>(block: [f32; LANES]) -> [Self; LANES] {
        L::to_f16(block)
    }
    #[inline(always)]
    fn divided(value: f32, count: u32) -> f32 {
        value / count as f32
    }
}

/// Features of a processor. The compiler vectorises all but the conversions of `f16`: those of the crate
/// `half` check the processor for each value, which is slow.
pub(super) trait Level {
    fn from_f16(block: [f16; LANES]) -> [f32; LANES];
    fn to_f16(block: [f32; LANES]) -> [f16; LANES];
}

/// Any processor of the platform.
pub(super) struct Portable;

impl Level for Portable {
    #[inline(always)]
    fn from_f16(block: [f16; LANES]) -> [f32; LANES] {
        block.map(|value| f16_to_f32(value.to_bits()))
    }
    #[inline(always)]
    fn to_f16(block: [f32; LANES]) -> [f16; LANES] {
        block.map(|value| f16::from_bits(f32_to_f16_bits(value)))
    }
}

/// x86-64-v3 as far as it matters here: AVX2 and F16C. Only code behind a check of the processor uses it.
#[cfg(target_arch = "x86_64")]
pub(super) struct V3;

#[cfg(target_arch = "x86_64")]
impl Level for V3 {
    #[inline(always)]
    fn from_f16(block: [f16; LANES]) -> [f32; LANES] {
        let vectors: [[u16; 8]; LANES / 8] = bytemuck::cast(block);
        // SAFETY: the processor has F16C, which every user of `V3` has checked.
        #[expect(unsafe_code, reason = "an instruction that not every processor has")]
        let wide =
            vectors.map(|vector| unsafe { std::arch::x86_64::_mm256_cvtph_ps(bytemuck::cast(vector)) });
        bytemuck::cast(wide)
    }
    #[inline(always)]
    fn to_f16(block: [f32; LANES]) -> [f16; LANES] {
        let vectors: [[f32; 8]; LANES / 8] = bytemuck::cast(block);
        // SAFETY: as above.
        #[expect(unsafe_code, reason = "an instruction that not every processor has")]
        let short = vectors.map(|vector| unsafe {
            std::arch::x86_64::_mm256_cvtps_ph::<{ std::arch::x86_64::_MM_FROUND_TO_NEAREST_INT }>(
                bytemuck::cast(vector),
            )
        });
        bytemuck::cast(short)
    }
}

/// The upper half, rounded to nearest, ties to even; a NaN becomes quiet.
#[inline(always)]
fn f32_to_bf16_bits(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7FFF + (bits >> 16 & 1)) >> 16;
    (if value.is_nan() { bits >> 16 | 0x0040 } else { rounded }) as u16
}

/// The value of an `f16`, without a branch, so that the compiler can use vectors.
#[inline(always)]
fn f16_to_f32(half: u16) -> f32 {
    /// Corrects for the difference of the exponent biases, and normalises subnormal numbers, exactly.
    const SCALE: f32 = f32::from_bits((127 + 127 - 15) << 23);
    let magnitude = u32::from(half & 0x7FFF) << 13;
    let number = (f32::from_bits(magnitude) * SCALE).to_bits();
    // Infinities and NaN have the largest exponent in both types.
    let bits = if magnitude >= 31 << 23 { magnitude | 255 << 23 } else { number };
    f32::from_bits(bits | u32::from(half & 0x8000) << 16)
}

/// The nearest `f16`, ties to even, without a branch. After Fabian Giesen's `float_to_half_fast3_rtne`.
#[inline(always)]
fn f32_to_f16_bits(value: f32) -> u16 {
    /// Added to a subnormal number of `f16`, it makes the processor round at the last bit of it.
    const ROUNDER: f32 = 0.5;
    let (sign, magnitude) = (value.to_bits() >> 16 & 0x8000, value.to_bits() & 0x7FFF_FFFF);
    let odd = magnitude >> 13 & 1;
    let normal = magnitude.wrapping_add(0xFFF + odd).wrapping_sub((127 - 15) << 23) >> 13;
    let subnormal = (f32::from_bits(magnitude) + ROUNDER).to_bits().wrapping_sub(ROUNDER.to_bits());
    let special = if magnitude > 255 << 23 { 0x7E00 | magnitude >> 13 & 0x3FF } else { 0x7C00 };
    let bits = if magnitude >= (127 + 16) << 23 {
        special
    } else if magnitude < (127 - 14) << 23 {
        subnormal
    } else {
        normal
    };
    (sign | bits) as u16
}
