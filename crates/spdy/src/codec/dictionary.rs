//! The compression dictionary of SPDY/3: common HTTP header names and values.

use std::sync::LazyLock;

/// Words that are preceded by their length in four bytes.
const WORDS: &str = "options head post put delete trace accept accept-charset accept-encoding accept-language accept-ranges age allow \
    authorization cache-control connection content-base content-encoding content-language content-length content-location \
    content-md5 content-range content-type date etag expect expires from host if-match if-modified-since if-none-match if-range \
    if-unmodified-since last-modified location max-forwards pragma proxy-authenticate proxy-authorization range referer \
    retry-after server te trailer transfer-encoding upgrade user-agent vary via warning www-authenticate method get status \
    200_OK version HTTP/1.1 url public set-cookie keep-alive origin";

/// The rest of the dictionary.
const TAIL: &str = "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505\
    203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidden\
    404 Not Found500 Internal Server Error501 Not Implemented503 Service Unavailable\
    Jan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMT\
    chunked,text/html,image/png,image/jpg,image/gif,application/xml,application/xhtml+xml,text/plain,text/javascript,\
    publicprivatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0.";

/// The Adler-32 checksum that identifies the dictionary in a zlib stream.
pub(super) const ID: u32 = 0xe3c6_a7c2;

pub(super) static DICTIONARY: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut dictionary = Vec::with_capacity(1423);
    for word in WORDS.split_ascii_whitespace() {
        let length = u32::try_from(word.len()).unwrap_or_default();
        dictionary.extend_from_slice(&length.to_be_bytes());
        dictionary.extend(word.bytes().map(|byte| if byte == b'_' { b' ' } else { byte }));
    }
    dictionary.extend_from_slice(TAIL.as_bytes());
    dictionary
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dictionary_is_the_one_of_spdy_3() {
        let (mut low, mut high) = (1u32, 0u32);
        for byte in DICTIONARY.iter() {
            low = (low + u32::from(*byte)) % 65521;
            high = (high + low) % 65521;
        }
        assert_eq!(DICTIONARY.len(), 1423);
        assert_eq!(high << 16 | low, ID);
    }
}
