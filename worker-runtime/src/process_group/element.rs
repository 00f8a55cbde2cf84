//! The element types of collectives, and how values of several ranks become one.
//!
//! Bytes travel as they lie in memory: every platform of rankrun is little-endian, and so is the wire.

use std::fmt;

use bytemuck::Pod;
pub use half::{bf16, f16};

#[cfg(target_endian = "big")]
compile_error!("the wire of a process group is little-endian memory");

mod sealed {
    pub trait Sealed {}
}

/// The element type of a call, as peers compare it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataType {
    /// No elements: a barrier.
    None,
    /// `f16`: IEEE 754 binary16.
    F16,
    /// `bf16`: the upper half of an `f32`.
    Bf16,
    /// `f32`.
    F32,
    /// `f64`.
    F64,
    /// `i32`.
    I32,
    /// `i64`.
    I64,
    /// `u8`.
    U8,
}

impl DataType {
    /// Bytes of one element.
    #[must_use]
    pub fn size(self) -> usize {
        match self {
            Self::None => 0,
            Self::U8 => 1,
            Self::F16 | Self::Bf16 => 2,
            Self::F32 | Self::I32 => 4,
            Self::F64 | Self::I64 => 8,
        }
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "nothing",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::I32 => "i32",
            Self::I64 => "i64",
            Self::U8 => "u8",
        })
    }
}

/// How the values of all ranks become one. On one host values are taken in rank order, so that the result has the same bits on
/// every rank and in every run. Sums of `f16` and `bf16` are kept in `f32` and rounded once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reduction {
    /// The sum; integers wrap around.
    Sum,
    /// The sum divided by the number of ranks; integers are cut towards zero.
    Mean,
    /// The product; integers wrap around.
    Product,
    /// The largest value; not-a-number wins over every number.
    Max,
    /// The smallest value; not-a-number wins over every number.
    Min,
}

impl fmt::Display for Reduction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sum => "sum",
            Self::Mean => "mean",
            Self::Product => "product",
            Self::Max => "max",
            Self::Min => "min",
        })
    }
}

/// A type of which a process group can carry slices.
pub trait Element: Pod + sealed::Sealed + PartialOrd + fmt::Debug + Send + Sync {
    /// The name of the type on the wire.
    const DATA_TYPE: DataType;
}

macro_rules! elements {
    ($($type:ty => $data_type:expr),*) => {$(
        impl sealed::Sealed for $type {}
        impl Element for $type {
            const DATA_TYPE: DataType = $data_type;
        }
    )*};
}

elements!(
    f16 => DataType::F16,
    bf16 => DataType::Bf16,
    f32 => DataType::F32,
    f64 => DataType::F64,
    i32 => DataType::I32,
    i64 => DataType::I64,
    u8 => DataType::U8
);
