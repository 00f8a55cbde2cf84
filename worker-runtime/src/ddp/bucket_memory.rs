//! The memory of a bucket, here or with a call under way.

use rankrun_contract::rank::Rank;

use super::error::DdpError;
use crate::process_group::{AsyncGroup, Buffer, Collective, DataType, ReduceOp, Work};

/// The location of a bucket's memory.
#[derive(Debug)]
pub(super) enum BucketMemory {
    /// Here, readable and writable.
    Here(Buffer<u8>),
    /// With a started call.
    Away(Work<Buffer<u8>>),
    /// Lost with a failed call.
    Lost,
}

impl BucketMemory {
    pub(super) fn bytes(&self) -> Result<&[u8], DdpError> {
        match self {
            Self::Here(buffer) => Ok(buffer),
            Self::Away(_) | Self::Lost => Err(DdpError::Ended),
        }
    }

    pub(super) fn bytes_mut(&mut self) -> Result<&mut [u8], DdpError> {
        match self {
            Self::Here(buffer) => Ok(buffer),
            Self::Away(_) | Self::Lost => Err(DdpError::Ended),
        }
    }

    /// Starts the mean of this bucket over all ranks.
    pub(super) fn all_reduce(
        &mut self,
        async_group: &AsyncGroup,
        data_type: DataType,
    ) -> Result<(), DdpError> {
        let mut buffer = self.take()?;
        *self = Self::Away(async_group.start(move |group| {
            let work = Collective::AllReduce { data: &mut buffer[..], op: ReduceOp::Mean };
            group.run(data_type, work).map(|()| buffer)
        }));
        Ok(())
    }

    /// Starts the broadcast of this bucket from one rank.
    pub(super) fn broadcast(
        &mut self,
        async_group: &AsyncGroup,
        data_type: DataType,
        root: Rank,
    ) -> Result<(), DdpError> {
        let mut buffer = self.take()?;
        *self = Self::Away(async_group.start(move |group| {
            let work = Collective::Broadcast { data: &mut buffer[..], root };
            group.run(data_type, work).map(|()| buffer)
        }));
        Ok(())
    }

    /// Waits for the started call, if there is one.
    pub(super) fn wait(&mut self) -> Result<(), DdpError> {
        *self = match std::mem::replace(self, Self::Lost) {
            Self::Here(buffer) => Self::Here(buffer),
            Self::Away(work) => Self::Here(work.wait()?),
            Self::Lost => return Err(DdpError::Ended),
        };
        Ok(())
    }

    fn take(&mut self) -> Result<Buffer<u8>, DdpError> {
        match std::mem::replace(self, Self::Lost) {
            Self::Here(buffer) => Ok(buffer),
            other => {
                *self = other;
                Err(DdpError::Ended)
            }
        }
    }
}
