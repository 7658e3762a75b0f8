//! What the server reads of its clients, who may be anybody.

#![allow(dead_code, reason = "every fuzz target uses its own part")]

use oncekey::testing::internals;

/// What a client sends; the first byte is the size of the pieces in which it arrives. Whether all of it
/// is requests.
pub fn run(input: &[u8]) -> bool {
    let Some((piece, bytes)) = input.split_first() else {
        return false;
    };
    let whole = internals::requests(bytes, bytes.len());
    let pieces = internals::requests(bytes, usize::from(*piece));
    assert_eq!(pieces, whole, "pieces change nothing");
    let Ok(requests) = whole else {
        return false;
    };
    // Written as clients write them, they are the same requests.
    let mut again = Vec::new();
    for request in &requests {
        again.extend_from_slice(format!("*{}\r\n", request.len()).as_bytes());
        for argument in request {
            again.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
            again.extend_from_slice(argument);
            again.extend_from_slice(b"\r\n");
        }
    }
    // A line may have more bytes than arguments of an array may.
    if let Ok(read) = internals::requests(&again, again.len()) {
        assert_eq!(read, requests);
    }
    !requests.is_empty()
}
