//! Element types and reduce operations of collectives.
//!
//! Elements are sent as they lie in memory: every platform of rankrun is little-endian,
//! and so is the wire format.

use std::fmt;

use bytemuck::Pod;
pub use half::{bf16, f16};

#[cfg(target_endian = "big")]
compile_error!("the wire of a process group is little-endian memory");

mod sealed {
    pub trait Sealed {}
}

/// Element type of a call. Ranks compare it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataType {
    /// No elements, as in a barrier.
    None,
    /// IEEE 754 binary16.
    F16,
    /// bfloat16: the upper half of an `f32`.
    Bf16,
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary64.
    F64,
    /// Signed 32-bit integer.
    I32,
    /// Signed 64-bit integer.
    I64,
    /// Unsigned byte.
    U8,
}

impl DataType {
    /// Bytes of one element; 0 for no elements.
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

/// How the values of all ranks are combined; torch's `ReduceOp`, MPI's `MPI_Op`.
///
/// On one host values are combined in rank order, so that every rank gets the same bits in every run. Sums of
/// `f16` and `bf16` are kept in `f32` and rounded once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReduceOp {
    /// The sum; integers wrap around.
    Sum,
    /// The sum divided by the number of ranks; integers are cut towards zero.
    Mean,
    /// The product; integers wrap around.
    Product,
    /// The largest value; NaN wins over every number.
    Max,
    /// The smallest value; NaN wins over every number.
    Min,
}

impl fmt::Display for ReduceOp {
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

/// An element type that a process group can transfer. Sealed: the list is fixed by the wire format.
pub trait Element: Pod + sealed::Sealed + PartialOrd + fmt::Debug + Send + Sync {
    /// The wire name of the type.
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
