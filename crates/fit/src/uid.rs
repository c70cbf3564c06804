//! UIDs of pods, in little memory.

/// The UID of a pod. Almost all are UUIDs, of which there may be hundreds of thousands.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Uid {
    /// One in the canonical form.
    Uuid([u8; 16]),
    /// Any other text.
    Other(Box<str>),
}

impl From<&str> for Uid {
    fn from(text: &str) -> Self {
        uuid(text).map_or_else(|| Self::Other(text.into()), Self::Uuid)
    }
}

/// Only the canonical form, so that different texts stay different UIDs.
fn uuid(text: &str) -> Option<[u8; 16]> {
    let bytes = text.as_bytes();
    let mut digits = bytes.iter().enumerate().filter(|(index, _)| ![8, 13, 18, 23].contains(index));
    if bytes.len() != 36 || [8, 13, 18, 23].iter().any(|index| bytes[*index] != b'-') {
        return None;
    }
    let mut uuid = [0; 16];
    for byte in &mut uuid {
        for _ in 0..2 {
            let digit = match digits.next()?.1 {
                digit @ b'0'..=b'9' => digit - b'0',
                digit @ b'a'..=b'f' => digit - b'a' + 10,
                _ => return None,
            };
            *byte = *byte << 4 | digit;
        }
    }
    Some(uuid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_canonical_uuids_are_shortened() {
        let uid = Uid::from("00112233-4455-6677-8899-aabbccddeeff");
        let bytes =
            [0, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff];
        assert_eq!(uid, Uid::Uuid(bytes));
        for text in [
            "00112233-4455-6677-8899-AABBCCDDEEFF",
            "00112233-4455-6677-8899-aabbccddeef",
            "001122334455-6677-8899-aabbccddeeff-",
            "",
            "mirror",
        ] {
            assert_eq!(Uid::from(text), Uid::Other(text.into()));
        }
    }
}
